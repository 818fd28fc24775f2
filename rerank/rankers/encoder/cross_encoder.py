"""Cross-encoders: scores of a query and a document in one sequence (Nogueira and Cho 2019); without torch."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank.common.errors import RerankError, UsageError
from rerank.common.files import as_system_error, parse_json
from rerank.rankers.encoder.bert import Array, Bert, readable
from rerank.rankers.encoder.folder import model_folder, onnx_file, weight_files
from rerank.rankers.encoder.modules import Tokens
from rerank.rankers.encoder.onnx import OnnxModel, fastest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENS = 128
"""Longest sequence; the longer of query and text is cut first, as transformers does."""

_CHARACTERS = 20 * TOKENS  # read of a query or text; more would only cost time
_KIND = "ForSequenceClassification"
_BERT = ("pooler.dense", "classifier")
_ROBERTA = ("classifier.dense", "classifier.out_proj")
_HEADS = {"Bert": _BERT, "Roberta": _ROBERTA, "XLMRoberta": _ROBERTA, "Camembert": _ROBERTA}
"""Architecture -> linear layers of its head."""


@dataclass(frozen=True)
class _BertClassifier:
    """BERT with the two linear layers of its head."""

    bert: Bert
    head: tuple[str, str]

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self.bert.tokens.tokenizer

    @property
    def longest(self) -> int:
        """The largest number of tokens that the model reads."""
        return len(self.bert.weights["embeddings.position_embeddings.weight"]) - self.bert.first

    def logits(self, ids: Sequence[int], types: Sequence[int]) -> Array:
        """Return the outputs of a pair of texts, (classes,), from its tokens and their types."""
        first = self.bert.states(ids, types)[:1]
        dense, out = self.head
        logits: Array = self.bert.linear(np.tanh(self.bert.linear(first, dense)), out)[0]
        return logits


@dataclass(frozen=True)
class _OnnxClassifier:
    """A classifier in a file of ONNX."""

    model: OnnxModel
    tokenizer: Tokenizer
    longest: int

    def logits(self, ids: Sequence[int], types: Sequence[int]) -> Array:
        """Return the outputs of a pair of texts, (classes,), from its tokens and their types."""
        tokens = np.array([ids], dtype=np.int64)
        output = self.model.run(tokens, np.ones_like(tokens), np.array([types], dtype=np.int64))
        if output.ndim != 2:
            raise ValueError("its first output is not one number for each class")
        logits: Array = output[0]
        return logits


@dataclass(frozen=True)
class CrossEncoder:
    """Scores how relevant a document is to a query, by one sequence with both of their texts.

    folder:     of the model.
    classifier: a sequence classifier with one output, or with two classes.
    files:      the files that decide a score.
    """

    folder: Path
    classifier: _BertClassifier | _OnnxClassifier
    files: tuple[Path, ...]

    @classmethod
    def load(cls, name: str) -> CrossEncoder:
        """Read a model in Hugging Face's layout. Its weights are mapped into memory.

        name: a folder or the name of a model, as for :func:`rerank.rankers.encoder.folder.model_folder`.

        Raises UsageError for other models, WorkspaceError if the system cannot read it.
        """
        folder = model_folder(name)
        try:
            encoder = cls._read(name, folder)
            tokenizer = encoder.classifier.tokenizer
            tokenizer.enable_truncation(min(TOKENS, encoder.classifier.longest))
            pair = tokenizer.encode("a", "a")  # every weight is there and has the right shape
            outputs = len(encoder.classifier.logits(pair.ids, pair.type_ids))
        except RerankError:
            raise
        except Exception as error:  # tokenizers raises nothing narrower
            raise as_system_error(error, folder) or UsageError(
                f"{name}: cannot be read ({error!r}); give another copy of the model"
            ) from error
        if outputs not in (1, 2):
            raise UsageError(f"{name}: has {outputs} classes; give a model with one output or two classes")
        return encoder

    @classmethod
    def _read(cls, name: str, folder: Path) -> CrossEncoder:
        config: dict[str, Any] = parse_json((folder / "config.json").read_text("utf-8"))
        architecture = str((config.get("architectures") or [""])[0])
        files = (folder / "config.json", folder / "tokenizer.json")
        if architecture.endswith(_KIND):
            head = _HEADS.get(architecture.removesuffix(_KIND))
            onnx = onnx_file(folder)
            if head is not None and readable(folder):
                bert_classifier = _BertClassifier(fastest(Bert.load(folder)), head)
                return cls(folder, bert_classifier, (*files, *weight_files(folder)))
            if onnx is not None:
                longest = int(config.get("max_position_embeddings") or TOKENS)
                tokenizer = Tokens.read(folder, longest).tokenizer
                onnx_classifier = _OnnxClassifier(OnnxModel(onnx), tokenizer, longest)
                return cls(folder, onnx_classifier, (*files, onnx))
        readable_kinds = ", ".join(f"{kind}{_KIND}" for kind in _HEADS)
        raise UsageError(
            f"{name}: {architecture or 'the model'} cannot be a cross-encoder; give one of {readable_kinds}"
            " with model.safetensors, tokenizer.json and the activation gelu, or a classifier with"
            " onnx/model.onnx"
        )

    @cached_property
    def version(self) -> str:
        """Checksum of the files that decide a score."""
        crc = 0
        for path in self.files:
            crc = zlib.crc32(np.memmap(path, np.uint8, "r").data, crc)
        return f"{crc:08x}"

    def score(self, query: str, text: str) -> float:
        """Return the score of a text for a query: the output, or the log-odds of the second class."""
        tokenizer = self.classifier.tokenizer
        pair = tokenizer.encode(query[:_CHARACTERS], text[:_CHARACTERS])
        logits = self.classifier.logits(pair.ids, pair.type_ids)
        return float(logits[-1] - (logits[0] if len(logits) > 1 else 0))
