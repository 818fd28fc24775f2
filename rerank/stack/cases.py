"""Cases of queries: a stack can have weights for each."""

CASES = ("brought", "inferred", "none")
"""Where a query's categories come from: with it, from its first candidates, or from nowhere."""
