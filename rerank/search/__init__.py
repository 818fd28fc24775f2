"""A query's candidates scored by every signal."""
