"""Fits the CNN rankers."""
