"""Reads checkpoints that other programs wrote: maps their tensors, runs none of their code, follows no links.

Whatever is not what it claims to be raises ImportRefused, before anything is written.
"""
