"""What was learned and measured, as pages for people."""
