"""Engines store documents, text index and features."""
