"""Learns the relatedness of texts from labeled pairs."""
