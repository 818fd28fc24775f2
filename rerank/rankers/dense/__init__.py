"""Ranking by passage vectors (Raman et al. 2021)."""
