"""Linear projections of term vectors: ``lsi``, ``cllsi``, ``opca``, ``cca``, ``s2net`` (Yih et al. 2011)."""
