"""What an install brings, and how fast the library and the command line start."""
