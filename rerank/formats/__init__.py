"""Readers and writers of files, one module per format."""

from __future__ import annotations

from rerank.formats.beir import read_corpus, read_queries
from rerank.formats.categories import read_categories
from rerank.formats.pairs import read_labeled_pairs, read_pairs, read_unlabeled_pairs
from rerank.formats.qrels import read_qrels, write_qrels
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
    "write_qrels",
    "write_run",
]
