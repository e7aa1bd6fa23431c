"""Where a trainer reports to: console, JSON lines, TensorBoard and plots."""
