"""Tokens, and the layout of sentence-transformers: modules after the transformer; without torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import map_arrays
from rerank.common.errors import UsageError
from rerank.common.files import parse_json, write_bytes, write_text
from rerank.common.values import with_keys
from rerank.documents.records import Document
from rerank.rankers.encoder.published import Habit, Pooling, habit

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MODES: dict[Pooling, str] = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
"""Pooling -> its name in older files."""

LENGTHS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
WEIGHTS = "model.safetensors"
_TYPES = "sentence_transformers.models."


@dataclass(frozen=True)
class Modules:
    """Modules after the transformer; vectors are scaled to length 1 at the end.

    longest: tokens per sequence, including special tokens; None: unknown.
    projection: (E, k) linear map of pooled vectors; None: identity.
    query_prompt, document_prompt: start the texts.
    lowercase: whether texts are lowercased before the tokenizer reads them.
    """

    pooling: Pooling = "mean"
    longest: int | None = None
    projection: NDArray[np.float32] | None = None
    query_prompt: str = ""
    document_prompt: str = ""
    lowercase: bool = False

    def width(self, pooled: int) -> int:
        """Return E, the numbers of a vector after the modules. pooled: the numbers before them."""
        return pooled if self.projection is None else self.projection.shape[1]

    def mapped(self, pooled: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return pooled vectors, (..., k), after the linear map, (..., E), and with length 1."""
        vectors = pooled if self.projection is None else pooled @ self.projection
        unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
        return unit

    @classmethod
    def read(cls, folder: Path) -> Modules:
        """Read the folder of a model.

        Settings that its files do not state follow from the name of a published model, or else the defaults.

        Raises UsageError for other modules, OSError and ValueError for damaged files.
        """
        expected = habit(folder) or Habit(cls.pooling, cls.query_prompt, cls.document_prompt)
        pooling = expected.pooling
        matrices: list[NDArray[np.float32]] = []
        for kind, path in _modules_after_transformer(folder):
            if kind == "Pooling":
                pooling = _pooling(path)
            elif kind == "Dense":
                matrices.append(_linear(path))
        lengths = _optional_config(folder / LENGTHS)
        prompts = _prompts(folder)
        if not any(prompts):
            prompts = (expected.query_prompt, expected.document_prompt)
        return cls(
            pooling,
            lengths.get("max_seq_length"),
            reduce(np.matmul, matrices) if matrices else None,
            *prompts,
            bool(lengths.get("do_lower_case")),
        )

    def write(self, folder: Path, width: int) -> None:
        """Write the files of sentence-transformers into the folder of a transformer.

        width: numbers of a token's vector.
        """
        kinds = ["Transformer", "Pooling", "Normalize"]
        if self.projection is not None:
            kinds.insert(2, "Dense")
        names: list[str] = []
        listed: list[dict[str, object]] = []
        for number, kind in enumerate(kinds):
            name = f"{number}_{kind}" if number else ""  # the transformer is in the folder itself
            names.append(name)
            listed.append({"idx": number, "name": str(number), "path": name, "type": _TYPES + kind})
        pooling = {mode: name == self.pooling for name, mode in MODES.items()}
        files: dict[str, object] = {
            "modules.json": listed,
            LENGTHS: {"max_seq_length": self.longest, "do_lower_case": False},
            f"{names[1]}/config.json": {"word_embedding_dimension": width, **pooling},
        }
        if self.query_prompt or self.document_prompt:
            files[PROMPTS] = {"prompts": {"query": self.query_prompt, "document": self.document_prompt}}
        for name in names[1:]:
            (folder / name).mkdir()
        if self.projection is not None:
            from safetensors.numpy import save

            files[f"{names[2]}/config.json"] = {
                "in_features": width,
                "out_features": self.projection.shape[1],
                "bias": False,
                "activation_function": "torch.nn.modules.linear.Identity",
            }
            weight = np.ascontiguousarray(self.projection.T)
            write_bytes(folder / names[2] / WEIGHTS, save({"linear.weight": weight}))
        for name, content in files.items():
            write_text(folder / name, json.dumps(content, indent=2) + "\n")


def _modules_after_transformer(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the kind and the folder of each listed module: ``Pooling``, ``Dense`` or ``Normalize``.

    Raises UsageError for other kinds.
    """
    listed = folder / "modules.json"
    if not listed.is_file():
        return
    for module in parse_json(listed.read_text("utf-8")):
        kind = module["type"].rpartition(".")[2]
        if kind not in ("Transformer", "Pooling", "Dense", "Normalize"):
            raise UsageError(f"{folder}: modules of the type {kind} are not supported; give another model")
        if kind != "Transformer":
            yield kind, folder / module["path"]


def _config(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = parse_json(path.read_text("utf-8"))
    return config


def _optional_config(path: Path) -> dict[str, Any]:
    """Return the settings of a file, or no settings without this file."""
    return _config(path) if path.is_file() else {}


def _prompts(folder: Path) -> tuple[str, str]:
    """Return the prompts of queries and documents, chosen as by sentence-transformers."""
    config = _optional_config(folder / PROMPTS)
    prompts = config.get("prompts") or {}
    default = prompts.get(config.get("default_prompt_name"), "")
    document_prompts = with_keys(prompts, ("document", "passage", "corpus")).values()
    return prompts.get("query", default), next(iter(document_prompts), default)


def _pooling(path: Path) -> Pooling:
    config = _config(path / "config.json")
    if config.get("include_prompt") is False:
        raise UsageError(f"{path}: poolings without the prompt are not supported; give another model")
    modes = _pooling_modes(config)
    for pooling, mode in MODES.items():
        if modes <= {mode, pooling}:
            return pooling
    raise UsageError(f"{path}: only the poolings mean and cls are supported; give another model")


def _pooling_modes(config: Mapping[str, Any]) -> set[object]:
    """Return the poolings that a configuration combines, as ``mean`` or ``pooling_mode_mean_tokens``."""
    modes: set[object] = set()
    for name, value in config.items():
        if name == "pooling_mode":
            modes.add(value)
        elif name.startswith("pooling_mode_") and value is True:
            modes.add(name)
    return modes


def _linear(path: Path) -> NDArray[np.float32]:
    config = _config(path / "config.json")
    is_linear = str(config.get("activation_function", "")).endswith(".Identity")
    has_bias = config.get("bias", True)
    if has_bias or not is_linear or not (path / WEIGHTS).is_file():
        raise UsageError(
            f"{path}: only linear maps without bias in safetensors are supported; give another model"
        )
    matrix: NDArray[np.float32] = map_arrays(path / WEIGHTS)["linear.weight"].astype(np.float32).T
    return matrix


@dataclass
class Tokens:
    """Tokenizer of ``tokenizers``.

    longest: tokens per sequence, including special tokens and prompt.
    prompt: starts each sequence.
    """

    tokenizer: Tokenizer
    longest: int
    prompt: str = ""

    def __post_init__(self) -> None:
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    @classmethod
    def read(cls, folder: Path, longest: int, prompt: str = "", *, lowercase: bool = False) -> Tokens:
        """Read the ``tokenizer.json`` of a model.

        longest:   tokens per sequence, with special tokens and prompt.
        lowercase: whether texts are lowercased first; see :func:`lowercase_texts`.
        """
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        if lowercase:
            lowercase_texts(tokenizer)
        return cls(tokenizer, longest, prompt)

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, without special tokens and prompt."""
        return self._ids(list(texts), False) if texts else []

    def _ids(self, texts: list[str], special: bool) -> list[list[int]]:
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts, add_special_tokens=special)]

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """The tokens before and after each sequence: special tokens, and before it also the prompt."""
        (plain,) = self._ids(["a"], False)
        (framed,) = self._ids(["a"], True)
        start = next(i for i in range(len(framed)) if framed[i : i + len(plain)] == plain)
        prompt = self([self.prompt.rstrip()])[0] if self.prompt else []
        return [*framed[:start], *prompt], framed[start + len(plain) :]

    @property
    def room(self) -> int:
        """The number of tokens of a text that fit into a sequence with its :attr:`frame`."""
        return self.longest - sum(map(len, self.frame))


def lowercase_texts(tokenizer: Tokenizer) -> None:
    """Let a tokenizer lowercase texts first, as sentence-transformers does for ``do_lower_case``."""
    from tokenizers import normalizers

    normalizer = tokenizer.normalizer
    if _lowercases(normalizer):
        return
    normalizers_in_order = filter(None, (normalizers.Lowercase(), normalizer))
    tokenizer.normalizer = normalizers.Sequence(list(normalizers_in_order))


def _lowercases(normalizer: object) -> bool:
    from tokenizers import normalizers

    if isinstance(normalizer, normalizers.Sequence):
        return any(map(_lowercases, cast("Iterable[object]", normalizer)))
    if isinstance(normalizer, normalizers.BertNormalizer):
        return bool(normalizer.lowercase)
    return isinstance(normalizer, normalizers.Lowercase)


def document_tokens(
    documents: Sequence[Document],
    tokenize: Callable[[list[str]], list[list[int]]],
    separator: Sequence[int] | None = None,
) -> list[list[int]]:
    """Tokenize contents, or titles and texts with separators.

    >>> from rerank.documents.records import Document
    >>> documents = [Document("1", "a b", "c"), Document("2", "a"), Document("3", text="c")]
    >>> words = {"a": 5, "b": 6, "c": 7}
    >>> document_tokens(documents, lambda texts: [[words[w] for w in t.split()] for t in texts], [3])
    [[5, 6, 3, 7], [5], [7]]
    """
    if separator is None:
        return tokenize([document.content for document in documents])
    titles = tokenize([document.title for document in documents])
    texts = tokenize([document.text for document in documents])
    tokens: list[list[int]] = []
    for title, text in zip(titles, texts):
        between = separator if title and text else ()
        tokens.append([*title, *between, *text])
    return tokens
