"""The evaluation page."""
