"""Write the folder that all peers read: one corpus, queries as users type them, and disjoint splits.

    python benchmarks/quality/peers/prepare.py DATA/cf OUT/cf
    python benchmarks/quality/peers/prepare.py DATA/debian OUT/debian.it --lang it --documents 3000
    python benchmarks/quality/peers/prepare.py DATA/wikispeedia OUT/wikispeedia.1200 --documents 1200
    python benchmarks/quality/peers/prepare.py demo OUT/demo

Categories of queries are not written. In these collections they are copied from the relevant document.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.common.collection import Collection
from rerank import Document, Qrels, Query
from rerank.documents.text import STEMMERS
from rerank.formats import read_corpus, read_qrels
from rerank.workflows.auto.splits import split
from rerank.workflows.demo import COLLECTION


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("source", help="folder of a collection, or demo")
    options.add_argument("out", type=Path, help="folder to write")
    options.add_argument("--lang", help="language of the debian collection, for example it")
    options.add_argument("--documents", type=int, help="size of a random sample. Default: all documents")
    args = options.parse_args()
    source = COLLECTION if args.source == "demo" else Path(args.source)
    collection = Collection(source, args.lang)
    (args.out / "qrels").mkdir(parents=True, exist_ok=True)
    with (gzip.open if collection.corpus.suffix == ".gz" else open)(collection.corpus, "rb") as read:
        lines = read.readlines()
    if args.documents:
        lines = random.Random(0).sample(lines, args.documents)
    (args.out / "corpus.jsonl").write_bytes(b"".join(lines))
    queries = collection.queries()
    prefix = f"{args.lang}." if args.lang else ""
    files = sorted((source / "qrels").glob(f"{prefix}*.tsv*"))
    given = {path.stem.removeprefix(prefix).removesuffix(".tsv"): read_qrels(path) for path in files}
    documents = list(read_corpus(args.out / "corpus.jsonl"))
    ids = {document.id for document in documents}
    splits = split(given if len(given) > 1 else {"all": next(iter(given.values()))}, queries, ids)
    judged_in_splits: set[str] = set()
    for name in ("train", "dev", "test"):
        qrels: Qrels = getattr(splits, name)
        order = random.Random(0).sample(sorted(qrels), len(qrels))
        rows = [f"{q}\t{d}\t{grade}\n" for q in order for d, grade in qrels[q].items() if d in ids]
        judged = {row.partition("\t")[0] for row in rows}
        judged_in_splits |= judged
        if rows:
            (args.out / "qrels" / f"{name}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
        print(f"{name}: {len(judged):,} queries")
    with (args.out / "queries.jsonl").open("w") as file:
        for query in queries:
            if query.id in judged_in_splits:
                lang = {"lang": query.lang} if query.lang else {}
                file.write(json.dumps({"_id": query.id, "text": query.text, **lang}) + "\n")
    texts: tuple[Sequence[Document | Query], ...] = (documents, queries)
    langs = [next((text.lang for text in of_kind if text.lang), "en") for of_kind in texts]
    (args.out / "languages.json").write_text(json.dumps([STEMMERS[lang].lower() for lang in langs]))
    for graph in source.glob("categories.tsv*"):
        shutil.copy(graph, args.out / graph.name)


if __name__ == "__main__":
    main()
