"""What ``chockstone watch`` does: asks a server how it is, and shows the answer on a terminal until q is pressed."""
