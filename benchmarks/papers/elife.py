"""Convert the eLife articles to a collection with titles, abstracts, subjects and citation links.

    python benchmarks/papers/elife.py DATA/elife-jats.tar.xz FOLDER

The script reads JATS as a stream. It writes FOLDER/corpus.jsonl.gz for `rerank ingest` and `dense.py`. An
article links to the DOIs in its reference list and, unless ``--citations-only`` is given, to its related
articles. Only links between articles of the archive are kept.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

from rerank.formats.jats import Article, read_jats


def line(article: Article, known: set[str], citations_only: bool) -> str:
    links = [*article.references, *(() if citations_only else article.related)]
    document = {
        "_id": article.key,
        "title": article.title,
        "text": article.abstract,
        "categories": list(article.subjects),
        "links": [key for key in dict.fromkeys(links) if key in known],
    }
    return json.dumps(document, ensure_ascii=False) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--citations-only", action="store_true")
    args = parser.parse_args()
    articles = sorted(read_jats(args.archive, sentences=False), key=lambda article: article.key)
    known = {article.key for article in articles}
    args.folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(args.folder / "corpus.jsonl.gz", "wt", encoding="utf-8") as out:
        for article in articles:
            out.write(line(article, known, args.citations_only))
    print(f"{sum(not one.abstract for one in articles)} of the articles without abstract")


if __name__ == "__main__":
    main()
