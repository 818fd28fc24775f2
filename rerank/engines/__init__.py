"""Where documents, their text index and their features live: see base.py for what an engine is."""
