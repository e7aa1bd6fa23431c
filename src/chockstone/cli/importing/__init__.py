"""What ``chockstone import`` does: finds weights in a directory, and sends them to a server.

It imports no torch unless a format needs it, and knows nothing of base models: the server checks names and shapes.
"""
