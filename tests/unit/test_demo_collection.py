"""The demo collection as shipped, and the script that builds it. Reads the files with json and gzip only."""

import gzip
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from tests.unavailable import unavailable

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = ROOT / "rerank" / "demo" / "collection"
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
    return read_jsonl("corpus.jsonl.gz")


@pytest.fixture(scope="module")
def queries():
    return read_jsonl("queries.jsonl.gz")


@pytest.fixture(scope="module")
def qrels():
    tables = {split: read_tsv(COLLECTION / "qrels" / f"{split}.tsv") for split in SPLITS}
    for table in tables.values():
        assert table[0] == ["query-id", "corpus-id", "score"]
    return {split: table[1:] for split, table in tables.items()}


@pytest.fixture(scope="module")
def builder():
    spec = importlib.util.spec_from_file_location("build_demo", ROOT / "tools" / "build_demo.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["build_demo"] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules["build_demo"]


@pytest.fixture(scope="module")
def articles(builder):
    if not ARCHIVE.exists():
        message = "the source archive ../shared/data/elife-jats.tar.xz is not there"
        unavailable(message)
    return builder.read_archive(ARCHIVE)


# --- the shipped files ---


def test_ids_are_unique(corpus, queries):
    for records in (corpus, queries):
        ids = [record["_id"] for record in records]
        assert len(ids) == len(set(ids)) > 0


def test_texts_are_clean(corpus, queries):
    texts = [text for d in corpus for text in (d["title"], d["text"])] + [q["text"] for q in queries]
    assert [text for text in texts if text != " ".join(text.split())] == []
    assert [text for text in texts if re.search(r"</?[a-z]+>|dx\.doi\.org|^eLife digest", text)] == []
    assert all(d["title"] for d in corpus)
    # Corrections have no abstract.
    assert [d["title"] for d in corpus if not d["text"] and not d["title"].startswith("Correction")] == []


def test_queries_carry_subject_headings_of_their_article(corpus, queries):
    categories = {d["_id"]: d["categories"] for d in corpus}
    assert max(len(q["categories"]) for q in queries) <= 2
    assert len({c for q in queries for c in q["categories"]}) < 20  # subjects, no keywords
    for query in queries:
        assert query["_id"].startswith("q:")
        assert query["categories"]
        assert set(query["categories"]) <= set(categories[query["_id"][2:]])


def test_documents_have_categories_of_their_own_once(corpus):
    for document in corpus:
        assert document["categories"]
        assert len(document["categories"]) == len(set(document["categories"]))


def test_judgments_name_known_queries_and_documents(corpus, queries, qrels):
    documents = {d["_id"] for d in corpus}
    known = {q["_id"] for q in queries}
    judged = set()
    for rows in qrels.values():
        assert len({(query, document) for query, document, _ in rows}) == len(rows)
        for query, document, grade in rows:
            assert query in known
            assert document in documents
            assert grade == ("2" if query == f"q:{document}" else "1")
            judged.add(query)
    assert judged == known


def test_splits_share_no_query(qrels):
    train, dev, test = ({query for query, _, _ in qrels[split]} for split in SPLITS)
    assert not train & dev
    assert not train & test
    assert not dev & test
    assert len(train) > len(dev) + len(test)


def test_links_stay_inside_and_never_point_home(corpus):
    known = {d["_id"] for d in corpus}
    for document in corpus:
        assert set(document["links"]) <= known - {document["_id"]}


def test_citations_of_a_query_article_are_judged(corpus, qrels):
    grades = {(query, document) for rows in qrels.values() for query, document, _ in rows}
    judged = {query for query, _ in grades}
    for document in corpus:
        for link in document["links"]:
            for one, other in ((document["_id"], link), (link, document["_id"])):
                assert f"q:{one}" not in judged or (f"q:{one}", other) in grades


def test_no_query_sentence_is_in_its_article(corpus, queries):
    content = {d["_id"]: squeeze(" ".join((d["title"], d["text"], *d["categories"]))) for d in corpus}
    for query in queries:
        for sentence in re.split(r"(?<=[.?!])\s+", query["text"]):
            if len(sentence) > 20:  # not the tail that this crude split leaves after "e.g."
                assert squeeze(sentence) not in content[query["_id"][2:]]


def test_every_article_is_attributed(corpus):
    header, *rows = read_tsv(COLLECTION / "attribution.tsv.gz")
    assert header == ["id", "authors", "year", "title", "source", "license", "copyright"]
    table = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert len(rows) == len(table)
    assert set(table) == {d["_id"] for d in corpus}
    for document in corpus:
        row = table[document["_id"]]
        assert re.fullmatch(r"10\.7554/eLife\.\d{5}", document["doi"])
        assert re.fullmatch(r"CC BY [34]\.0|CC0 1\.0", document["license"])
        assert document["authors"]
        assert row["authors"]
        assert row["title"] == document["title"]
        assert row["source"] == f"https://doi.org/{document['doi']}"
        assert (row["year"], row["license"]) == (str(document["year"]), document["license"])


def test_category_graph_is_acyclic_and_known(corpus):
    header, *pairs = read_tsv(COLLECTION / "categories.tsv")
    assert header == ["child", "parent"]
    assert len({tuple(pair) for pair in pairs}) == len(pairs) > 0
    assert {name for pair in pairs for name in pair} <= {c for d in corpus for c in d["categories"]}
    parents = {}
    for child, parent in pairs:
        parents.setdefault(child, set()).add(parent)
    while parents:  # remove the nodes without a parent left, top down
        free = {child for child, above in parents.items() if not above & parents.keys()}
        assert free, f"a cycle among {sorted(parents)[:5]}"
        for child in free:
            del parents[child]


def test_files_are_complete_and_small():
    files = {p.relative_to(COLLECTION).as_posix(): p for p in COLLECTION.rglob("*") if p.is_file()}
    assert set(files) == {
        "README.md",
        "attribution.tsv.gz",
        "categories.tsv",
        "corpus.jsonl.gz",
        "queries.jsonl.gz",
        *(f"qrels/{split}.tsv" for split in SPLITS),
    }
    assert sum(p.stat().st_size for p in files.values()) <= 3_000_000
    for name, path in files.items():
        if name.endswith(".gz"):
            header = path.read_bytes()[:8]
            assert header[3] == 0, f"{name}: a file name in the gzip header"
            assert header[4:8] == bytes(4), f"{name}: a time in the gzip header"


# --- the builder ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One is here. Two is there.", ["One is here.", "Two is there."]),
        (
            "Here, E. coli (e.g. K12) grew, i.e. MG1655. It did.",
            ["Here, E. coli (e.g. K12) grew, i.e. MG1655.", "It did."],
        ),
        ("Bai et al. (and others) report it. So be it.", ["Bai et al. (and others) report it.", "So be it."]),
        (
            "A study by Berger et al. The fossils are old.",
            ["A study by Berger et al.", "The fossils are old."],
        ),
        (
            "Dr. Who met Mr. Hyde vs. Jekyll. They talked.",
            ["Dr. Who met Mr. Hyde vs. Jekyll.", "They talked."],
        ),
        (
            "It makes vitamin C. In many animals it fails.",
            ["It makes vitamin C.", "In many animals it fails."],
        ),
        ("He asked ‘why?’ She left. ‘Why’ stayed.", ["He asked ‘why?’", "She left.", "‘Why’ stayed."]),
        ("About 0.5 mm long. 20 of them.", ["About 0.5 mm long.", "20 of them."]),
        ("Nutrients matter. mTOR senses them.", ["Nutrients matter.", "mTOR senses them."]),
        ("It was sold by Yahoo! in 2012.", ["It was sold by Yahoo! in 2012."]),
        ("(It grew.) Then it died", ["(It grew.)", "Then it died"]),
        ("", []),
    ],
)
def test_sentences(builder, text, expected):
    assert builder.sentences(text) == expected


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://creativecommons.org/licenses/by/3.0/", "CC BY 3.0"),
        ("https://creativecommons.org/licenses/by/4.0", "CC BY 4.0"),
        ("http://creativecommons.org/publicdomain/zero/1.0/", "CC0 1.0"),
        ("http://creativecommons.org/licenses/by-nc/4.0/", None),
        ("", None),
    ],
)
def test_license_name(builder, url, name):
    assert builder.license_name(url) == name


JATS = """<article article-type="research-article" xmlns:xlink="http://www.w3.org/1999/xlink"><front><article-meta>
<article-id pub-id-type="doi">10.7554/eLife.{id}</article-id>
<article-categories>
<subj-group subj-group-type="display-channel"><subject>Research article</subject></subj-group>
<subj-group subj-group-type="heading"><subject>Plant biology</subject></subj-group></article-categories>
<title-group><article-title>Ca<sup>2+</sup> in <italic>E. coli</italic></article-title></title-group>
<contrib-group><contrib contrib-type="author">
<name><surname>Li</surname><given-names>An B</given-names></name>
<xref ref-type="aff" rid="a">1</xref></contrib></contrib-group>
<contrib-group><contrib contrib-type="editor"><name><surname>Ed</surname></name></contrib></contrib-group>
<pub-date><year>2014</year></pub-date>
<permissions><license xlink:href="{license}"><license-p>text</license-p></license></permissions>
<related-article related-article-type="commentary" xlink:href="10.7554/eLife.00002"/>
<abstract><object-id pub-id-type="doi">10.7554/eLife.{id}.001</object-id><sec><title>Background</title>
<p>Known (<xref ref-type="bibr" rid="b">Roe et al.,
 2010</xref>) of CO<sub>2</sub>.</p></sec><p><bold>DOI:</bold> <ext-link>http://dx.doi.org/1</ext-link></p></abstract>
<abstract abstract-type="executive-summary"><title>eLife digest</title><p>Plants<italic> drink</italic>.</p>
<p>They eat light. And more.</p><p>DOI: x</p></abstract>
<kwd-group kwd-group-type="author-keywords">
<kwd><italic>Ion channels</italic></kwd><kwd>plant Biology</kwd></kwd-group>
<kwd-group><title>Research organism</title><kwd>&lt;i&gt;E. coli&lt;/i&gt;</kwd><kwd>None</kwd></kwd-group>
</article-meta></front><back><ref-list>
<ref><element-citation><pub-id pub-id-type="doi">10.7554/ELIFE.00003</pub-id></element-citation></ref>
<ref><element-citation><pub-id pub-id-type="doi">10.7554/eLife.{id}.002</pub-id></element-citation></ref>
<ref><element-citation><pub-id pub-id-type="pmid">10.7554/eLife.00004</pub-id></element-citation></ref>
</ref-list></back></article>"""
CC_BY = "http://creativecommons.org/licenses/by/4.0/"


def test_reading_jats(builder):
    article = builder.read_article(JATS.format(id="00001", license=CC_BY).encode())
    assert (article.id, article.doi, article.year) == ("e00001", "10.7554/eLife.00001", 2014)
    assert article.title == "Ca2+ in E. coli"
    assert article.abstract == "Known (Roe et al., 2010) of CO2."
    assert builder.first_sentences(article.digest) == "Plants drink. They eat light."
    assert article.subjects == ("Plant biology",)
    assert article.authors == ("An B Li",)
    assert article.cites == {"e00003"}  # neither itself nor what is no DOI
    assert article.related == {"e00002"}
    assert builder.Vocabulary([article]).categories_of(article) == [
        "Plant biology",
        "E. coli",
        "Ion channels",
    ]


def test_articles_under_another_license_are_left_out(builder):
    by_nc = "http://creativecommons.org/licenses/by-nc/4.0/"
    sources = (("00001", CC_BY), ("00002", by_nc), ("00003", CC_BY))
    articles = [builder.read_article(JATS.format(id=i, license=url).encode()) for i, url in sources]
    files = builder.build(articles)
    kept = [json.loads(line) for line in gzip.decompress(files["corpus.jsonl.gz"]).splitlines()]
    assert [(d["_id"], d["links"]) for d in kept] == [("e00001", ["e00003"]), ("e00003", [])]
    assert b"e00002" not in b"".join(files[f"qrels/{split}.tsv"] for split in SPLITS)


@pytest.mark.slow
def test_no_digest_sentence_is_in_any_document(builder, articles, corpus):
    content = "\n".join(squeeze(f"{d['title']}\n{d['text']}") for d in corpus)
    digests = {s for a in articles for text in a.digest for s in builder.sentences(text)}
    assert len(digests) > 10_000
    squeezed = {squeeze(s): s for s in digests}
    beginnings = {content[i : i + 12] for i in range(len(content))} & {s[:12] for s in squeezed}
    known = [s for s in squeezed if (s[:12] in beginnings or len(s) < 12) and s in content]
    assert sorted(squeezed[s] for s in known) == []


@pytest.mark.slow
def test_rebuilding_gives_the_shipped_files(builder, articles):
    """Compressed files are compared by content and by what this zlib makes of it: versions of zlib differ."""
    for name, rebuilt in builder.build(articles).items():
        shipped = (COLLECTION / name).read_bytes()
        if name.endswith(".gz"):
            content = gzip.decompress(shipped)
            assert gzip.decompress(rebuilt) == content, name
            assert rebuilt == builder._gzip(content), name
        else:
            assert rebuilt == shipped, name
