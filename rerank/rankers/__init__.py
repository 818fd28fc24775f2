"""Rankers: their interface (``base``), their families (``registry``), and a folder per family."""
