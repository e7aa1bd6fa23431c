"""One archive, many ranks: each process of a training writes and reads its own bytes of the one file.

Imported where torch.distributed is at work; knows of saving and restoring, nothing of training.
"""
