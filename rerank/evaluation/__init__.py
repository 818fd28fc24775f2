"""Evaluate rankings."""
