"""Transformer text encoders: NumPy for queries, torch for training."""
