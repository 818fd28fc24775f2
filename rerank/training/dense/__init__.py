"""Trains the ranker ``dense``: a text encoder that learns the link structure of the collection."""
