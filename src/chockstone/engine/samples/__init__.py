"""Sampling requests, their journal, and the weights that clients sample from without a name."""
