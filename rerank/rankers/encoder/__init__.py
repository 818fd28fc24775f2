"""A transformer as a text encoder: query side in NumPy, training in torch; shared by dense and concept."""
