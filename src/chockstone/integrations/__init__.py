"""The checkpoint library behind the interfaces of other platforms, one package each.

A package knows its platform and the checkpoint library. It must not know the server, nor torch unless its
platform is torch. No package imports another platform's SDK: each SDK is an extra of its own.
"""
