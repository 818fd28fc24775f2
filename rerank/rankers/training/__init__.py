"""Training loop, data and checkpoints of all families."""
