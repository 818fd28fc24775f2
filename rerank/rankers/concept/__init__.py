"""``concept``: how related two texts are, learned from labelled pairs."""
