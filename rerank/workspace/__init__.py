"""A workspace: the folder with an index, its settings, rankers and stacks."""
