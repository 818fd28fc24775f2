"""The stack: signals + normalisation + weights = the final score."""
