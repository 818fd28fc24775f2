"""Reading and writing the files rerank takes in and gives out; one module per format.

beir:        documents and queries, JSON lines
qrels:       judgments, BEIR's TSV or TREC's columns, told apart by the first line
trec:        runs, six columns
pairs:       texts that belong together, JSON lines; labeled pairs of documents, TSV or JSON lines
templates:   a search of the user's own: a file with its body, a stored template, a run
categories:  the category graph, child and parent
lines:       what they share: plain or gzip'd, a file or standard input, errors as FILE:LINE
"""

from __future__ import annotations

from rerank.formats.beir import read_corpus, read_queries
from rerank.formats.categories import read_categories
from rerank.formats.pairs import (
    read_labeled_pairs,
    read_pairs,
    read_unlabeled_pairs,
    write_labeled_pairs,
)
from rerank.formats.qrels import read_qrels
from rerank.formats.templates import read_template
from rerank.formats.trec import check_run_ids, read_run, write_run

__all__ = [
    "check_run_ids",
    "read_categories",
    "read_corpus",
    "read_labeled_pairs",
    "read_pairs",
    "read_qrels",
    "read_queries",
    "read_run",
    "read_template",
    "read_unlabeled_pairs",
    "write_labeled_pairs",
    "write_run",
]
