"""Graphs of categories and documents, on SciPy sparse matrices."""
