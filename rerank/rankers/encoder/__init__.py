"""Transformer encoders: queries in NumPy, training in torch."""
