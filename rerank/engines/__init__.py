"""Engines store documents, text index and features; base.py has the interface."""
