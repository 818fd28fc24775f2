"""An encoder as a ranker keeps it: loaded when a text comes, by NumPy for one text where that can be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import WorkspaceError
from rerank.files import parse_json, write_text
from rerank.rankers.base import Ranker, unreadable
from rerank.rankers.encoder.bert import Bert, readable
from rerank.rankers.encoder.transformer import Pooling, TextEncoder
from rerank.records import Query

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass
class StoredEncoder:
    """Turns texts into (E,) vectors of length 1; a text without any tokens has zeros.

    width: E. folder: the model, in Hugging Face's layout; None: it is loaded and not saved.
    """

    width: int
    pooling: Pooling
    longest: int
    folder: Path | None = None
    _encoder: TextEncoder | None = None
    _bert: Bert | None = None

    @classmethod
    def of(cls, encoder: TextEncoder) -> StoredEncoder:
        """Wrap one that is loaded."""
        return cls(encoder.width, encoder.pooling, encoder.longest, _encoder=encoder)

    @property
    def encoder(self) -> TextEncoder:
        """The transformer in torch, imported here: for many texts, and for models that are no BERT."""
        if self._encoder is None:
            assert self.folder is not None
            self._encoder = TextEncoder.load(str(self.folder), pooling=self.pooling, longest=self.longest)
        return self._encoder

    def one(self, text: str) -> NDArray[np.float32]:
        """(E,) of a text's first tokens, by NumPy where the model is a stored BERT, else by torch."""
        if self._bert is None and self.folder is not None and readable(self.folder):
            self._bert = Bert.load(self.folder, self.pooling, self.longest)
        if self._bert is not None:
            return self._bert.encode(text)
        found: NDArray[np.float32] = self.many([text])[0]
        return found

    def many(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, E) of the first tokens of texts, by torch."""
        found = np.zeros((len(texts), self.width), dtype=np.float32)
        if any(texts):
            encoder = self.encoder
            tokens = [one[: encoder.room] for one in encoder.tokens(list(texts))]
            filled = [row for row, one in enumerate(tokens) if one]
            if filled:
                found[filled] = encoder.encode([tokens[row] for row in filled])
        return found


@dataclass(kw_only=True, repr=False)
class EncoderRanker(Ranker):
    """What rankers by a transformer have in common: its vectors of length 1, and how it is kept.

    width:   E, numbers in a vector. longest: tokens of a text that are read, special ones included.
    trained: how it was fitted, for people to read.
    folder:  what it was loaded from; the encoder is loaded from there when it is first used.
    """

    name: str
    width: int
    version: str = ""
    trained: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    pooling: Pooling = "mean"
    longest: int = 128
    _stored: StoredEncoder | None = None

    @property
    def stored(self) -> StoredEncoder:
        """The encoder, loaded when it is first used."""
        if self._stored is None:
            assert self.folder is not None
            self._stored = StoredEncoder(self.width, self.pooling, self.longest, self.folder / "model")
        return self._stored

    def encode_query(self, query: Query) -> NDArray[np.float32]:
        """(E,) of length 1, of the query's first tokens; zeros for a query without any.

        By NumPy where the model is a stored BERT, else by torch.
        """
        return self.stored.one(query.text)

    def check(self, features: NDArray[Any], numbers: int) -> None:
        """Raise WorkspaceError for features of another width than so many numbers."""
        if features.shape[1:] != (numbers,):
            raise WorkspaceError(
                f"the stored {self.name} features have {features.shape[-1]} numbers, not {numbers};"
                f" train {self.name} again"
            )

    def own_record(self) -> dict[str, Any]:
        """What ``ranker.json`` holds beyond what all of them keep."""
        return {}

    def save(self, folder: Path) -> None:
        """Write ``ranker.json`` (readable) and ``model/`` in Hugging Face's layout."""
        folder.mkdir(parents=True, exist_ok=True)
        self.stored.encoder.save(folder / "model")
        record = {
            "family": self.family,
            "variant": self.variant,
            "name": self.name,
            "version": self.version,
            "width": self.width,
            **self.own_record(),
            "pooling": self.pooling,
            "longest": self.longest,
            "trained": dict(self.trained),
        }
        write_text(folder / "ranker.json", json.dumps(record, ensure_ascii=False, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read ``ranker.json``; the model is loaded when a text has to be encoded."""
        try:
            record = parse_json((folder / "ranker.json").read_text("utf-8"))
            del record["family"], record["variant"]
            if not (folder / "model" / "config.json").is_file():
                raise ValueError("its model is missing")
            return cls(**cls.own_fields(record, folder), folder=folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unreadable(folder, error) from error

    @classmethod
    def own_fields(cls, record: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Fields from a record, which may be changed, and from files beside it."""
        return record
