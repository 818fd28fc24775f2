"""Read a collection in the layout of BEIR, with an optional language in the names of its files.

The peers in ``quality/peers`` have their own reader of the standard library, because some of them run in an
environment without rerank.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rerank import Document, Qrels, Query, Workspace, ingest
from rerank.formats import read_corpus, read_qrels, read_queries


@dataclass(frozen=True)
class Collection:
    """The files of a collection.

    folder: has ``corpus.jsonl.gz``, ``queries.jsonl.gz``, ``qrels/SPLIT.tsv`` and, optionally,
            ``categories.tsv``. The files may also be uncompressed.
    lang:   suffix of the names of corpus and queries, and prefix of the names of judgments.
    """

    folder: Path
    lang: str | None = None

    @classmethod
    def named(cls, data: Path, name: str) -> Collection:
        """Return a collection of a folder of collections. ``debian.it`` is the Italian part of ``debian``."""
        folder, _, lang = name.partition(".")
        return cls(data / folder, lang or None)

    @property
    def name(self) -> str:
        return f"{self.folder.name}.{self.lang}" if self.lang else self.folder.name

    @property
    def corpus(self) -> Path:
        return self._file("corpus")

    @property
    def categories(self) -> Path | None:
        path = self.folder / "categories.tsv"
        return path if path.exists() else None

    def documents(self, count: int | None = None) -> list[Document]:
        return list(islice(read_corpus(self.corpus), count))

    def queries(self) -> list[Query]:
        return list(read_queries(self._file("queries")))

    def judgments(self, split: str) -> Qrels:
        """Return the judgments of a split: ``train``, ``dev`` or ``test``."""
        return read_qrels(self.folder / "qrels" / f"{f'{self.lang}.' if self.lang else ''}{split}.tsv")

    def training_data(self) -> dict[str, Any]:
        """Return the queries and judgments to train with, as arguments of ``train``."""
        qrels = {"qrels": self.judgments("train"), "dev_qrels": self.judgments("dev")}
        return {"queries": self.queries(), **qrels}

    def all_judgments(self) -> Qrels:
        """Return the judgments of all splits and languages."""
        judgments = []
        for path in sorted((self.folder / "qrels").glob("*.tsv*")):
            for query, grades in read_qrels(path).items():
                judgments += [(query, document, grade) for document, grade in grades.items()]
        return Qrels(judgments)

    def ingest(self, folder: str | Path) -> Workspace:
        """Return a workspace with the documents and the category graph. Create it if it is missing."""
        if (Path(folder) / "rerank.toml").exists():
            return Workspace.open(folder)
        categories = str(self.categories) if self.categories else None
        return ingest(str(folder), [str(self.corpus)], categories=categories).workspace

    def _file(self, name: str) -> Path:
        name += f".{self.lang}" if self.lang else ""
        paths = sorted(self.folder.glob(f"{name}.jsonl*"))
        if not paths:
            raise SystemExit(f"{self.folder / name}.jsonl.gz is missing. Name another folder or language.")
        return paths[0]


def write_corpus(path: Path, documents: Iterable[Document]) -> None:
    """Write ids, titles and texts as compressed JSON lines."""
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as lines:
        for document in documents:
            record = {"_id": document.id, "title": document.title, "text": document.text}
            lines.write(json.dumps(record) + "\n")
