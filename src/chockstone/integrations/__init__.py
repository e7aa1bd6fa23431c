"""Integrations: the checkpoint library behind the interfaces of other platforms, a package for each.

They know the platform and the checkpoint library; nothing of the server, and no torch. None is imported
with another: each needs an extra of its own.
"""
