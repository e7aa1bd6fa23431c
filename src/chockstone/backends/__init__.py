"""Arithmetic: the worker process that holds models, trains runs and samples from them.

``local`` starts that process and talks to it; it and ``channel`` are the only files here that the
API process loads, and they do not import torch.
"""
