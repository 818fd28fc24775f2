"""``concept``: relatedness of texts, learned from labeled pairs."""
