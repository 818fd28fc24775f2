"""Judged queries that share only frequent words with their relevant documents."""

from __future__ import annotations

from pathlib import Path

from rerank import Document, Qrels, Query, Workspace

TOPICS = 6
QUERIES = [Query(f"q{i}", f"w{2 * (i % TOPICS)} w{2 * (i % TOPICS) + 1} w{30 + i % 7}") for i in range(36)]
RELEVANT = {f"q{i}": [f"d{j}" for j in range(48) if j % TOPICS == i % TOPICS] for i in range(36)}


def qrels(first: int, last: int) -> Qrels:
    return Qrels((f"q{i}", d, 1) for i in range(first, last) for d in RELEVANT[f"q{i}"])


def topical(folder: Path) -> Workspace:
    made = Workspace.create(folder, lang="en")
    words = [[12 + 2 * (i % TOPICS), 13 + 2 * (i % TOPICS), 30 + i % 5] for i in range(48)]
    made.engine.write(
        Document(f"d{i}", text=" ".join(f"w{word}" for word in some)) for i, some in enumerate(words)
    )
    return made
