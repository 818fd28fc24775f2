"""Translate the queries of a collection word by word. Translations are learned from its training pairs.

    python benchmarks/papers/translations.py DATA/debian it queries.jsonl

Each training query and its document of the highest grade are parallel texts. IBM Model 1 (Brown et al. 1993)
with an empty word learns t(f | e). Each query word e is replaced by the f with the largest t. Words without a
translation do not change. The output queries have ``lexical_text``: tf-idf searches with the translation, and
the rankers read the original text (Kuwa et al. 2020, section 5.3).
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
    """IBM Model 1.

    left:  source word -> row; "" is the empty word.
    right: target word -> column.
    t:     P(right word | left word).
    """

    left: dict[str, int]
    right: dict[str, int]
    t: csr_array


def model_one(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> TranslationModel:
    """Return a model that is learned from pairs of tokenized texts.

    >>> best_translations(model_one([(["red", "house"], ["casa", "rossa"]), (["house"], ["casa"])]))
    {'house': 'casa', 'red': 'rossa'}
    """
    source: dict[str, int] = {"": 0}  # the empty word aligns with words without a translation
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
    """Return word -> its most probable translation."""
    rights, best = list(model.right), model.t.argmax(axis=1)
    return {word: rights[best[i]] for word, i in sorted(model.left.items()) if word}


@cache
def translated(folder: Path, lang: str) -> list[Query]:
    """Return the queries of a collection with ``lexical_text``."""
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
    """Write the translated queries."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder of the collection")
    parser.add_argument("lang", help="language of the queries, for example it")
    parser.add_argument("out", type=Path, help="file to write, .jsonl or .jsonl.gz")
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
