"""Linear projections of term vectors (Yih et al. 2011)."""
