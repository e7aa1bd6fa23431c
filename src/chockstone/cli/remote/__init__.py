"""What ``chockstone checkpoints`` does when a server is asked instead of a store.

Each file prints what its namesake one floor up prints of a store, from what the server answers over
HTTP. Nothing here opens a server's own files.
"""
