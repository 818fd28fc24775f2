"""A collection from the eLife articles: titles, abstracts, subjects, and citations between the articles.

    python benchmarks/elife.py DATA/elife-jats.tar.xz FOLDER

Reads JATS as a stream and writes FOLDER/corpus.jsonl.gz for `rerank ingest` and `dense.py`. An article links
to what its reference list names by DOI, and to its related articles unless ``--citations-only``; only links
between articles of the archive are kept.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tarfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

HREF = "{http://www.w3.org/1999/xlink}href"


def doi(text: str | None) -> str:
    """In lower case and without a resolver before it."""
    return (text or "").strip().lower().rpartition("doi.org/")[2]


def words(element: Any) -> str:
    return " ".join("".join(element.itertext()).split()) if element is not None else ""


def article(xml: bytes, citations_only: bool) -> dict[str, Any]:
    root = ElementTree.fromstring(xml)
    meta = root.find("front/article-meta")
    assert meta is not None
    abstract = next((a for a in meta.findall("abstract") if "abstract-type" not in a.attrib), None)
    paragraphs = abstract.findall(".//p") if abstract is not None else []
    cited = [doi(one.text) for one in root.findall("back/ref-list//pub-id[@pub-id-type='doi']")]
    if not citations_only:
        cited += [doi(one.get(HREF)) for one in meta.findall("related-article")]
    return {
        "_id": doi(meta.findtext("article-id[@pub-id-type='doi']")),
        "title": words(meta.find("title-group/article-title")),
        "text": " ".join(p for p in map(words, paragraphs) if not p.startswith("DOI:")),
        "categories": [
            words(one) for one in meta.findall(".//subj-group[@subj-group-type='heading']/subject")
        ],
        "links": list(dict.fromkeys(cited)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--citations-only", action="store_true")
    args = parser.parse_args()
    articles = []
    with tarfile.open(args.archive) as files:
        for member in files:
            if member.name.endswith(".xml") and (file := files.extractfile(member)) is not None:
                articles.append(article(file.read(), args.citations_only))
    known = {one["_id"] for one in articles}
    for one in articles:
        one["links"] = [link for link in one["links"] if link in known and link != one["_id"]]
    args.folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(args.folder / "corpus.jsonl.gz", "wt", encoding="utf-8") as out:
        for one in sorted(articles, key=lambda one: one["_id"]):
            out.write(json.dumps(one, ensure_ascii=False) + "\n")
    pairs = {frozenset((one["_id"], link)) for one in articles for link in one["links"]}
    print(
        f"{len(articles)} articles, {sum(not one['text'] for one in articles)} without abstract,"
        f" {len(pairs)} linked pairs"
    )


if __name__ == "__main__":
    main()
