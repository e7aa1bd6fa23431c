"""Experiment trackers behind one protocol: Weights & Biases, MLflow, Trackio and TensorBoard.

A tracker runs in a process of its own (``process``), which the engine feeds. This room must not know the engine, the
catalog or HTTP: it gets plain facts (``tracker``). Every package of a tracker is an extra and is imported late.
"""
