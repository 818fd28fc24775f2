"""The commands as library functions."""
