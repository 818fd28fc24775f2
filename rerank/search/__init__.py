"""Retrieve and score candidates."""
