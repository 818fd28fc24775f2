"""Words as tokens, for tests without a model."""

from __future__ import annotations


class Words:
    """Words numbered by first appearance, from 1; 0 is the mask."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {"[MASK]": 0}

    def tokens(self, texts: list[str]) -> list[list[int]]:
        """Return the numbers of words."""
        return [[self.number.setdefault(word, len(self.number)) for word in text.split()] for text in texts]
