"""What the commands of these names do: library calls that take a workspace and give a report."""
