"""The shipped demo collection, and the script that builds it. Reads the files only with json and gzip."""

import gzip
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.opensearch import unavailable

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = ROOT / "rerank" / "workflows" / "demo" / "collection"
ARCHIVE = ROOT.parent / "shared" / "data" / "elife-jats.tar.xz"
SPLITS = ("train", "dev", "test")


def read_tsv(path):
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    return [line.split("\t") for line in text.removesuffix("\n").split("\n")]


def read_jsonl(name):
    with gzip.open(COLLECTION / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def squeeze(text):
    return re.sub(r"\W+", " ", text).strip().casefold()


@pytest.fixture(scope="module")
def corpus():
    return {record["_id"]: record for record in read_jsonl("corpus.jsonl.gz")}


@pytest.fixture(scope="module")
def queries():
    return {record["_id"]: record for record in read_jsonl("queries.jsonl.gz")}


@pytest.fixture(scope="module")
def qrels():
    return {split: read_tsv(COLLECTION / "qrels" / f"{split}.tsv")[1:] for split in SPLITS}


@pytest.fixture(scope="module")
def builder():
    spec = importlib.util.spec_from_file_location("build_demo", ROOT / "tools" / "build_demo.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["build_demo"] = module  # dataclasses need the module in sys.modules
    spec.loader.exec_module(module)
    yield module
    del sys.modules["build_demo"]


def test_documents_have_clean_fields(corpus):
    assert len(corpus) == len(read_jsonl("corpus.jsonl.gz"))
    for id, document in corpus.items():
        texts = document["title"], document["text"]
        assert [text for text in texts if text != " ".join(text.split())] == []
        assert not any(re.search(r"</?[a-z]+>|dx\.doi\.org|^eLife digest", text) for text in texts)
        assert document["title"]
        assert document["text"] or document["title"].startswith("Correction")
        assert len(document["categories"]) == len(set(document["categories"])) > 0
        assert set(document["links"]) <= corpus.keys() - {id}


def test_queries_have_subjects_and_no_sentence_of_their_article(corpus, queries):
    assert len({c for query in queries.values() for c in query["categories"]}) < 20  # subjects, not keywords
    for id, query in queries.items():
        document = corpus[id.removeprefix("q:")]
        assert 0 < len(query["categories"]) <= 2
        assert set(query["categories"]) <= set(document["categories"])
        content = squeeze(" ".join((document["title"], document["text"], *document["categories"])))
        for sentence in re.split(r"(?<=[.?!])\s+", query["text"]):
            if len(sentence) > 20:  # not the rest that this simple split leaves after "e.g."
                assert squeeze(sentence) not in content


def test_judgments_are_consistent(corpus, queries, qrels):
    rows = [row for split in SPLITS for row in qrels[split]]
    grades = {(query, document): grade for query, document, grade in rows}
    assert len(grades) == len(rows)
    assert {query for query, _ in grades} == queries.keys()
    assert {document for _, document in grades} <= corpus.keys()
    assert all(grade == ("2" if query == f"q:{d}" else "1") for (query, d), grade in grades.items())
    train, dev, test = ({query for query, _, _ in qrels[split]} for split in SPLITS)
    assert len(train | dev | test) == len(train) + len(dev) + len(test)
    assert len(train) > len(dev) + len(test)
    linked = {(id, link) for id, document in corpus.items() for link in document["links"]}
    for one, other in linked | {(other, one) for one, other in linked}:
        assert f"q:{one}" not in queries or (f"q:{one}", other) in grades


def test_every_article_is_attributed(corpus):
    header, *rows = read_tsv(COLLECTION / "attribution.tsv.gz")
    assert header == ["id", "authors", "year", "title", "source", "license", "copyright"]
    assert [row[0] for row in rows] == list(corpus)
    for id, authors, year, title, source, license, _ in rows:
        document = corpus[id]
        assert re.fullmatch(r"CC BY [34]\.0|CC0 1\.0", license)
        assert authors
        assert (int(year), title, source, license) == (
            document["year"], document["title"], f"https://doi.org/{document['doi']}", document["license"]
        )  # fmt: skip


def test_category_graph_is_acyclic_and_known(corpus):
    header, *pairs = read_tsv(COLLECTION / "categories.tsv")
    assert header == ["child", "parent"]
    assert {name for pair in pairs for name in pair} <= {c for d in corpus.values() for c in d["categories"]}
    parents = {}
    for child, parent in pairs:
        parents.setdefault(child, set()).add(parent)
    while parents:  # remove nodes without a remaining parent, from the top
        free = {child for child, above in parents.items() if not above & parents.keys()}
        assert free, f"a cycle among {sorted(parents)[:5]}"
        for child in free:
            del parents[child]


def test_the_readme_states_the_counts_and_the_size_is_limited(corpus, queries, qrels):
    readme = (COLLECTION / "README.md").read_text("utf-8")
    edges = len(read_tsv(COLLECTION / "categories.tsv")) - 1
    assert f"{len(corpus):,} documents" in readme
    assert f"{len(queries):,} queries" in readme
    assert f"{edges:,} pairs" in readme
    for split, rows in qrels.items():
        ones = sum(grade == "1" for _, _, grade in rows)
        assert f"| {split} | {len({row[0] for row in rows}):,} | {len(rows):,} | {ones:,} |" in readme
    assert sum(path.stat().st_size for path in COLLECTION.rglob("*") if path.is_file()) <= 3_000_000


@pytest.mark.slow
def test_a_rebuild_gives_the_shipped_files(builder, corpus):
    """Compressed files are compared by content, because zlib versions differ."""
    if not ARCHIVE.exists():
        unavailable("the source archive ../shared/data/elife-jats.tar.xz is missing")
    articles = builder.read_archive(ARCHIVE)
    for name, rebuilt in builder.build(articles).items():
        shipped = (COLLECTION / name).read_bytes()
        if name.endswith(".gz"):
            assert shipped[3:8] == bytes(5), f"{name}: a file name or time in the gzip header"
            assert gzip.decompress(rebuilt) == gzip.decompress(shipped), name
        else:
            assert rebuilt == shipped, name
    content = "\n".join(squeeze(f"{d['title']}\n{d['text']}") for d in corpus.values())
    digests = {squeeze(s) for a in articles for text in a.digest for s in builder.sentences(text)}
    assert len(digests) > 10_000
    starts = [match.start() for match in re.finditer(r"\b\w", content)]
    beginnings = {content[i : i + 12] for i in starts} & {s[:12] for s in digests}
    assert [s for s in digests if (s[:12] in beginnings or len(s) < 12) and s in content] == []
