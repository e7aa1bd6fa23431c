"""The work of commands that ask a server over HTTP.

Files with a namesake in ``local`` print the same of a server's checkpoints. Nothing here opens a server's own files.
"""
