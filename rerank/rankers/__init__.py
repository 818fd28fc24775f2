"""Rankers: what one is (``base``), the families there are (``registry``), and a folder for each family."""
