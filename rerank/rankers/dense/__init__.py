"""Transformer encoders: vectors of a document's fragments (Raman et al. 2021)."""
