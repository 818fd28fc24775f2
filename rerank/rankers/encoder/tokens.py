"""Tokens of documents and queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rerank.records import Document


@dataclass
class Tokens:
    """Tokenizer of ``tokenizers``.

    longest: tokens per sequence, including special tokens and prompt.
    prompt: starts each sequence.
    """

    tokenizer: Any
    longest: int
    prompt: str = ""

    def __post_init__(self) -> None:
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    @classmethod
    def read(cls, folder: Path, longest: int, prompt: str = "") -> Tokens:
        """Read a model's ``tokenizer.json``."""
        from tokenizers import Tokenizer

        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")), longest, prompt)

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize without special tokens."""
        return self._ids(list(texts), False) if texts else []

    def _ids(self, texts: list[str], special: bool) -> list[list[int]]:
        return [one.ids for one in self.tokenizer.encode_batch(texts, add_special_tokens=special)]

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """Special tokens, with the prompt, before and after a sequence."""
        (plain,), (framed,) = self._ids(["a"], False), self._ids(["a"], True)
        start = next(i for i in range(len(framed)) if framed[i : i + len(plain)] == plain)
        prompt = self([self.prompt.rstrip()])[0] if self.prompt else []
        return [*framed[:start], *prompt], framed[start + len(plain) :]

    @property
    def room(self) -> int:
        """Tokens per sequence, without :attr:`frame`."""
        return self.longest - sum(len(part) for part in self.frame)


def document_tokens(
    documents: Sequence[Document],
    tokenize: Callable[[list[str]], list[list[int]]],
    separator: Sequence[int] | None = None,
) -> list[list[int]]:
    """Tokenize contents, or titles and texts with separators.

    >>> from rerank.records import Document
    >>> documents = [Document("1", "a b", "c"), Document("2", "a"), Document("3", text="c")]
    >>> words = {"a": 5, "b": 6, "c": 7}
    >>> document_tokens(documents, lambda texts: [[words[w] for w in t.split()] for t in texts], [3])
    [[5, 6, 3, 7], [5], [7]]
    """
    if separator is None:
        return tokenize([document.content for document in documents])
    titles = tokenize([document.title for document in documents])
    texts = tokenize([document.text for document in documents])
    return [
        [*title, *separator, *text] if title and text else title or text for title, text in zip(titles, texts)
    ]
