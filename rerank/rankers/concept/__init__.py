"""``concept``: how related two texts are, learned from labeled pairs."""
