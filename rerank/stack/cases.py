"""Cases of queries: a stack can have weights for each."""

CASES = ("brought", "inferred", "none")
"""The source of a query's categories: the query, its first candidates, or none."""
