"""``rerank auto``: find the files of a folder, plan, train, tune and evaluate in a limited time."""
