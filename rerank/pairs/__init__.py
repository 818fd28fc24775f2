"""Pairs of documents: the score of a pair, and measures of rankers on labeled pairs."""
