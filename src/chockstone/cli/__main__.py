from chockstone.cli import main

main()
