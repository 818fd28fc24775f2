"""Rankers: interface (``base``), families (``registry``), one folder per family."""
