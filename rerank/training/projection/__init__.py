"""Fits the projections."""
