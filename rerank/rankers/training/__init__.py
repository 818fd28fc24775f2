"""The training loop, its data and checkpoints; shared by all families."""
