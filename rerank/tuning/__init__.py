"""The search for a stack's weights."""
