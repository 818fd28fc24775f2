"""Encoders of stored rankers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from rerank.common.files import parse_json
from rerank.documents.records import Query
from rerank.rankers.base import Ranker, write_record
from rerank.rankers.encoder.bert import Bert, readable
from rerank.rankers.encoder.modules import Modules
from rerank.rankers.encoder.onnx import fastest
from rerank.rankers.encoder.shared import PASSAGE_VECTORS, QUERY_VECTORS
from rerank.rankers.encoder.transformer import TextEncoder

if TYPE_CHECKING:
    from typing_extensions import Self


_berts: WeakValueDictionary[str, Bert] = WeakValueDictionary()
"""Version of a pretrained encoder -> its model for queries, which the rankers that map its vectors share."""


@dataclass(kw_only=True, repr=False)
class EncoderRanker(Ranker):
    """A ranker whose vectors come from a transformer.

    source:  an encoder, or the folder of a stored ranker, which is read on first use.
    width:   E, the numbers of a vector. Default: of the encoder.
    version: Default: a hash of everything that decides the vectors.
    trained: settings and history of the training, which are only stored.
    pretrained_version: version of the pretrained encoder, if its transformer was not trained. Rankers with
        the same one share the work of the transformer. Empty: it was trained.
    """

    name: str
    source: TextEncoder | Path
    width: int = 0
    version: str = ""
    trained: Mapping[str, Any] = field(default_factory=dict)
    pretrained_version: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.source, TextEncoder):
            self.width = self.source.width
            self.version = self.version_with(self.source)

    def version_with(self, encoder: TextEncoder) -> str:
        """Return a hash of everything that decides the vectors, for the version of the ranker."""
        raise NotImplementedError

    @cached_property
    def encoder(self) -> TextEncoder:
        """The transformer in torch, or in ONNX Runtime; it is read on first use."""
        source = self.source
        return source if isinstance(source, TextEncoder) else TextEncoder.load(str(source / "model"))

    @cached_property
    def _bert(self) -> Bert | None:
        if isinstance(self.source, TextEncoder) or not readable(self.source / "model"):
            return None
        folder = self.source / "model"
        loaded = _berts.get(self.pretrained_version)
        if loaded is not None:
            return replace(loaded, modules=Modules.read(folder))
        bert = fastest(Bert.load(folder))
        if self.pretrained_version:
            _berts[self.pretrained_version] = bert
        return bert

    def encode_query(self, query: Query) -> NDArray[np.float32]:
        """Return a query vector, (E,), for stored BERT by NumPy, or by ONNX Runtime if it is installed."""
        bert = self._bert
        if bert is None:
            vector: NDArray[np.float32] = self.vectors([query.text], queries=True)[0]
            return vector
        if not self.pretrained_version:
            return bert.encode(query.text)
        text = query.text.encode(errors="surrogatepass")
        (pooled,) = QUERY_VECTORS.get(
            self.pretrained_version, [text], lambda _: bert.pooled(query.text)[None]
        )
        return bert.mapped(pooled)

    def vectors(self, texts: Sequence[str], *, queries: bool = False) -> NDArray[np.float32]:
        """Return the vectors of the first tokens of n texts, (n, E), of length 1; zeros without tokens.

        queries: whether the texts start with the prompt of queries, and not of documents.
        """
        vectors = np.zeros((len(texts), self.width), dtype=np.float32)
        if any(texts):
            encoder = self.encoder.of_queries if queries else self.encoder
            tokens = [text_tokens[: encoder.room] for text_tokens in encoder.tokens(list(texts))]
            rows = np.flatnonzero(list(map(len, tokens)))
            if len(rows):
                vectors[rows] = self.encode_tokens([tokens[row] for row in rows.tolist()], encoder)
        return vectors

    def encode_tokens(self, sequences: Sequence[Sequence[int]], encoder: TextEncoder) -> NDArray[np.float32]:
        """Return the vectors of n sequences of tokens, (n, E), of length 1.

        encoder: the transformer, with the prompt of queries or of documents.
        """
        if not self.pretrained_version:
            return encoder.encode(sequences)
        before, after = encoder.tokens.frame
        texts = [np.array([*before, *sequence, *after], np.int32).tobytes() for sequence in sequences]
        unmapped = encoder.without_projection()
        pooled = PASSAGE_VECTORS.get(
            self.pretrained_version, texts, lambda rows: unmapped.encode([sequences[row] for row in rows])
        )
        return encoder.modules.mapped(pooled)

    def save(self, folder: Path) -> None:
        """Write ``ranker.json``, and ``model/`` in the layout of sentence-transformers."""
        folder.mkdir(parents=True, exist_ok=True)
        self.encoder.save(folder / "model")
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, (int, float))}
        write_record(
            self, folder, **numbers, pretrained_version=self.pretrained_version, trained=dict(self.trained)
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read ``ranker.json``. The model is read on first use. Raises ValueError if it is missing."""
        record = parse_json((folder / "ranker.json").read_text("utf-8"))
        if not (folder / "model" / "config.json").is_file():
            raise ValueError("its model is missing")
        return cls(**record, **cls.own_files(folder), source=folder)

    @classmethod
    def own_files(cls, folder: Path) -> dict[str, Any]:
        """Return the fields of the class, by name, that are stored in other files than ``ranker.json``."""
        return {}
