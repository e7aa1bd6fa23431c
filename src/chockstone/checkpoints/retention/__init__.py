"""Which checkpoints stay and which are removed: the policy as data, and its execution."""
