"""Transformer encoders: vectors of a document's passages (Raman et al. 2021)."""
