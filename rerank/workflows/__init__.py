"""The commands as library functions: each takes a workspace and returns a report."""
