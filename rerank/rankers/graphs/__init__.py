"""Graphs of a collection: links, shared categories, citations."""
