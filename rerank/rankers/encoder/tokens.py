"""A text's tokens, and the special ones around them: one way for documents and for queries.

By the package ``tokenizers``, from a model's ``tokenizer.json``; a model that has none keeps the way that
transformers has for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rerank.records import Document


@dataclass
class Tokens:
    """What a tokenizer does to texts.

    ids:     texts, and whether special tokens are added -> their tokens; whole texts, however long.
    longest: tokens of a sequence, special ones included.
    """

    ids: Callable[[list[str], bool], list[list[int]]]
    longest: int

    @classmethod
    def read(cls, folder: Path, longest: int) -> Tokens:
        """Read a model's ``tokenizer.json``."""
        from tokenizers import Tokenizer

        return cls._fast(Tokenizer.from_file(str(folder / "tokenizer.json")), longest)

    @classmethod
    def of(cls, tokenizer: Any, longest: int) -> Tokens:
        """Those of a tokenizer of transformers'."""
        if tokenizer.is_fast:  # a copy: padding and truncation are states of the other
            backend = tokenizer.backend_tokenizer
            return cls._fast(type(backend).from_str(backend.to_str()), longest)

        def ids(texts: list[str], framed: bool) -> list[list[int]]:
            found: list[list[int]] = tokenizer(
                texts, add_special_tokens=framed, verbose=False, return_attention_mask=False
            )["input_ids"]
            return found

        return cls(ids, longest)

    @classmethod
    def _fast(cls, tokenizer: Any, longest: int) -> Tokens:
        tokenizer.no_padding()
        tokenizer.no_truncation()

        def ids(texts: list[str], framed: bool) -> list[list[int]]:
            return [found.ids for found in tokenizer.encode_batch(texts, add_special_tokens=framed)]

        return cls(ids, longest)

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize without special tokens."""
        return self.ids(list(texts), False) if texts else []

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """Special tokens before and after a sequence."""
        (one,), (framed,) = self.ids(["a"], False), self.ids(["a"], True)
        at = next(i for i in range(len(framed)) if framed[i : i + len(one)] == one)
        return framed[:at], framed[at + len(one) :]

    @property
    def room(self) -> int:
        """Tokens of a sequence without the special ones."""
        before, after = self.frame
        return self.longest - len(before) - len(after)


def document_tokens(
    documents: Sequence[Document],
    tokenize: Callable[[list[str]], list[list[int]]],
    separator: Sequence[int] | None = None,
) -> list[list[int]]:
    """Tokenize documents: their content, or title, separator, text.

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
