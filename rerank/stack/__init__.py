"""The stack: signals + normalization + weights = the final score."""
