"""Evaluate rankings: measures, significance, protocols, category overlap."""
