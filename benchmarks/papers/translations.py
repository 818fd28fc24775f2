"""Word-by-word translations of a collection's queries, learned from its own training pairs.

    python benchmarks/papers/translations.py DATA/debian it queries.jsonl

A query and its document of the highest grade are taken for parallel texts: of the training split alone. IBM's
Model 1 (Brown et al. 1993), with an empty word, gives t(f | e); each word of a query becomes the f of the
largest t, and stays as it is where none was learned. The queries are written with ``lexical_text``: tf-idf
then looks for the translation, and the rankers read the original (Kuwa et al. 2020, section 5.3).
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from rerank.files import write_text
from rerank.formats import read_corpus, read_qrels, read_queries
from rerank.records import Query
from rerank.text import words

ITERATIONS = 8


@dataclass(frozen=True, eq=False)
class TranslationModel:
    """IBM's Model 1. left: words, "" for the empty one. t: P(right word | left word), a row per left word."""

    left: dict[str, int]
    right: dict[str, int]
    t: csr_array


def model_one(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> TranslationModel:
    """Learn translations from pairs of texts as words.

    >>> best_translations(model_one([(["red", "house"], ["casa", "rossa"]), (["house"], ["casa"])]))
    {'house': 'casa', 'red': 'rossa'}
    """
    source: dict[str, int] = {"": 0}  # the empty word takes what belongs to none
    target: dict[str, int] = {}
    e_of, f_of, slot_of = [], [], []
    slots = 0
    for left, right in pairs:
        e = np.array([0, *{source.setdefault(word, len(source)) for word in left}])
        f = np.array([*{target.setdefault(word, len(target)) for word in right}], dtype=np.int64)
        e_of.append(np.repeat(e, len(f)))
        f_of.append(np.tile(f, len(e)))
        slot_of.append(np.tile(np.arange(slots, slots + len(f)), len(e)))
        slots += len(f)
    e_all, f_all, slot = (np.concatenate(some) for some in (e_of, f_of, slot_of))
    known, at = np.unique(e_all * len(target) + f_all, return_inverse=True)
    of_e = known // len(target)
    t = np.ones(len(known))
    for _ in range(ITERATIONS):
        t /= np.bincount(of_e, t)[of_e]
        share = t[at]
        share /= np.bincount(slot, share)[slot]
        t = np.bincount(at, share, len(known))
    t /= np.bincount(of_e, t)[of_e]
    return TranslationModel(
        source, target, csr_array((t, (of_e, known % len(target))), shape=(len(source), len(target)))
    )


def best_translations(model: TranslationModel) -> dict[str, str]:
    """Return the most probable translation of each word."""
    rights, best = list(model.right), model.t.argmax(axis=1)
    return {word: rights[best[i]] for word, i in sorted(model.left.items()) if word}


@cache
def translated(folder: Path, lang: str) -> list[Query]:
    """The queries of a collection with ``lexical_text``."""
    queries = {query.id: query for query in read_queries(str(folder / f"queries.{lang}.jsonl.gz"))}
    qrels = read_qrels(str(folder / "qrels" / f"{lang}.train.tsv"))
    wanted = {
        d: q for q in qrels for d, g in qrels[q].items() if g == max(qrels[q].values()) and q in queries
    }
    pairs = [
        (words(queries[wanted[document.id]].text), words(document.content))
        for document in read_corpus(str(folder / f"corpus.{lang}.jsonl.gz"))
        if document.id in wanted
    ]
    table = best_translations(model_one(pairs))
    return [
        replace(query, lexical_text=" ".join(table.get(word, word) for word in words(query.text)) or None)
        for query in queries.values()
    ]


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("lang")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    lines = []
    for query in translated(options.folder, options.lang):
        fields = {"_id": query.id, "text": query.text, "lexical_text": query.lexical_text}
        fields |= {"categories": list(query.categories), "lang": query.lang}
        lines.append(json.dumps(fields, ensure_ascii=False))
    text = "\n".join(lines) + "\n"
    if options.out.suffix == ".gz":
        options.out.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        write_text(options.out, text)


if __name__ == "__main__":
    main()
