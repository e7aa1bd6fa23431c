"""Where a trainer writes its metrics and events: console, JSON lines, TensorBoard and a plot.

This room must not know rollouts, training or checkpoints: it gets records of plain numbers.
"""
