"""Readers and writers of files, one module per format."""

from __future__ import annotations

from rerank.formats.beir import read_corpus as read_corpus
from rerank.formats.beir import read_queries as read_queries
from rerank.formats.categories import read_categories as read_categories
from rerank.formats.pairs import read_labeled_pairs as read_labeled_pairs
from rerank.formats.pairs import read_pairs as read_pairs
from rerank.formats.pairs import read_unlabeled_pairs as read_unlabeled_pairs
from rerank.formats.qrels import read_qrels as read_qrels
from rerank.formats.qrels import write_qrels as write_qrels
from rerank.formats.templates import read_template as read_template
from rerank.formats.trec import check_run_ids as check_run_ids
from rerank.formats.trec import read_run as read_run
from rerank.formats.trec import write_run as write_run
