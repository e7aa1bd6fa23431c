"""``chockstone checkpoints``: its commands, options and help. The work is done in ``local`` and ``remote``."""
