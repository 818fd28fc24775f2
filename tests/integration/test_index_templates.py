"""The index templates on a real node: the resulting indices, terms and scores."""

from __future__ import annotations

import base64
import contextlib
import math
import sys
import unicodedata
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest
from rerank.index_templates import component, index_body

from rerank.documents.text import STEMMERS, Terms, analyzer
from tests.unit.index_templates.test_index_templates import FILES
from tools.opensearch_node import Node

COMPONENTS = [name for name in FILES if not name.startswith("rerank-index-")]
ANALYSES = [name.removeprefix("rerank-analysis-") for name in FILES if name.startswith("rerank-analysis-")]

SPECIAL = (
    "foo_bar bar_0 3.14 1,000 v2.10.3-rc1 R2-D2 it's rock'n'roll l\u2019été co-op a\u2014b C++ C# AT&T "
    "https://example.com/a/b?c=d&e=%20#f me@example.com (x|y) [z] 50% 5\u00a0km 5\u202fkm zero\u200bwidth "
    "soft\u00adware x\u00b2 \u00bd \u2168 \U0001f600 \U0001f469\u200d\U0001f52c \U0001f1ee\U0001f1f9 "
    "1\ufe0f\u20e3 \u00fc u\u0308 tab\tnew\nline \u6771\u4eac \u30ab\u30ca \uc11c\uc6b8 \u0645\u064e\u062f "
    "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd " + "b" * 64 + " " + "c" * 65 + " " + "d" * 300
)
SENTENCES = {
    "ar": "وَلَدَ العالِمُ في القاهرة، ودرس الكيمياء في الجامعة سنة 1987. هل قرأتَ الكتابَين؟",
    "da": "Forskerne undersøgte, hvordan bakterierne spreder sig; resultaterne offentliggøres i morgen.",
    "de": "Die Forscher untersuchten die Übertragung größerer Datenmengen zwischen Häusern.",
    "el": "Οι ερευνητές μελέτησαν τις πρωτεΐνες των κυττάρων, και τα αποτελέσματα δημοσιεύθηκαν.",
    "en": "The researchers' findings weren't published; studies of binding proteins are running faster.",
    "es": "Los investigadores estudiaron las proteínas; ¿cuándo publicarán los resultados más rápidamente?",
    "fi": "Tutkijat selvittivät, miten solujen proteiinit sitoutuvat toisiinsa talojen välillä.",
    "fr": "Les chercheuses n'ont pas publié l'étude aujourd'hui\u00a0: «\u202fles protéines\u202f».",
    "hu": "A kutatók megvizsgálták a sejtek fehérjéit, és az eredményeket közzétették a házakban.",
    "it": "Le ricercatrici hanno studiato le proteine dell'uomo; perché non pubblicarle velocemente?",
    "nb": "Forskerne undersøkte hvordan bakteriene sprer seg, og resultatene ble offentliggjort.",
    "nl": "De president kwam in december met een boek en een film over de stad Amsterdam.",
    "pt": "Os pesquisadores não estudaram as proteínas; publicações rapidamente disponíveis, então?",
    "ro": "Cercetătorii au studiat proteinele celulelor, iar rezultatele au fost publicate la București.",
    "ru": "Исследователи изучили белки клеток, а результаты ещё не опубликованы; её книги — новые.",
    "sv": "Forskarna undersökte hur bakterierna sprider sig, och resultaten publicerades i tidningen.",
    "ta": "தமிழ்நாட்டில் ஆராய்ச்சியாளர்கள் புத்தகங்களைப் படித்தார்கள், வீடுகளுக்குச் சென்றனர்.",
    "tr": "Araştırmacılar hücrelerin proteinlerini inceledi; kitapların Türkiye'de basımı sürüyor.",
}
SENTENCES |= dict.fromkeys(("nn", "no"), SENTENCES["nb"])


@pytest.fixture(scope="module")
def templates(node: Node) -> Iterator[None]:
    """Put all templates on the node."""
    indices = [name for name in FILES if name not in COMPONENTS]
    try:
        for name in COMPONENTS:
            node.request("PUT", f"/_component_template/{name}", component(name))
        for name in indices:
            node.request("PUT", f"/_index_template/{name}", component(name))
        yield
    finally:
        for kind, names in (("_index_template", indices), ("_component_template", COMPONENTS)):
            for name in names:
                with contextlib.suppress(ValueError):
                    node.request("DELETE", f"/{kind}/{name}")


@contextlib.contextmanager
def index(node: Node, name: str, body: dict[str, Any]) -> Iterator[str]:
    """Create an index for the block, and delete it after the block."""
    node.request("PUT", f"/{name}", body)
    try:
        yield name
    finally:
        node.request("DELETE", f"/{name}")


def plain(settings: Any) -> Any:
    """Return settings as strings, without settings that the node adds."""
    if isinstance(settings, dict):
        added = {"creation_date", "provided_name", "uuid", "version", "replication"}
        return {key: plain(value) for key, value in settings.items() if key not in added}
    if isinstance(settings, list):
        return [plain(value) for value in settings]
    return str(settings).lower() if isinstance(settings, bool) else str(settings)


def terms(node: Node, name: str, text: str, analyzer: str = "rerank_query") -> list[str]:
    answer = node.request("POST", f"/{name}/_analyze", {"analyzer": analyzer, "text": text})
    return [token["token"] for token in answer["tokens"]]


def scores(node: Node, name: str, query: dict[str, Any]) -> dict[str, float]:
    found = node.request("POST", f"/{name}/_search", {"query": query})
    return {hit["_id"]: hit["_score"] for hit in found["hits"]["hits"]}


@pytest.mark.usefixtures("templates")
@pytest.mark.parametrize("lang", ANALYSES)
def test_a_template_makes_the_same_index_as_index_body(node, lang):
    code = {"cjk": "ja", "neutral": None}.get(lang, lang)
    expected = index_body(code, shards=2, replicas=0)
    simulated = node.request("POST", f"/_index_template/_simulate_index/rerank-{lang}-x")
    assert simulated["overlapping"] == []
    template = simulated["template"]
    sizes = {"number_of_shards": "2", "number_of_replicas": "0"}
    assert plain(template["settings"]["index"]) | sizes == plain(expected["settings"]["index"])
    assert plain(template["mappings"]) == plain(expected["mappings"])

    own = {"settings": {"index": {"number_of_shards": 2, "number_of_replicas": 0}}}
    with index(node, f"rerank-{lang}-test", own) as one, index(node, "tmpl-test", expected) as other:
        made = [node.request("GET", f"/{name}")[name] for name in (one, other)]
    assert plain(made[0]["settings"]) == plain(made[1]["settings"])
    assert made[0]["mappings"] == made[1]["mappings"]


@pytest.mark.parametrize("lang", sorted(STEMMERS))
def test_stemmed_terms_equal_the_terms_of_the_local_engine(node, lang):
    with index(node, "tmpl-test", index_body(lang, shards=1, replicas=0)) as name:
        # The Dutch stemmers also differ in the accents of SPECIAL. The splitting of words is the same for
        # all languages.
        for text in (SENTENCES[lang], SPECIAL)[: 1 if lang == "nl" else 2]:
            expected = Terms(lang)(text)
            assert terms(node, name, text) == expected
            assert len(expected) > 5


@pytest.mark.parametrize("lang", ["pt", "ta"])  # one language for each of the two tokenizers
def test_all_characters_split_words_as_in_the_local_engine(node, lang):
    """The analyzer of documents splits them in the same way, the analyzer of queries also normalizes them."""
    # Only characters that are older than any Unicode version in use.
    old = unicodedata.ucd_3_2_0
    known = [chr(c) for c in range(1, sys.maxunicode) if old.category(chr(c)) not in ("Cn", "Co", "Cs")]
    embedded = analyzer(lang)
    normalizing = Terms(lang)
    with index(node, "tmpl-test", index_body(lang, shards=1, replicas=0)) as name:
        for start in range(0, len(known), 3000):
            text = " ".join(f"q{c}q" for c in known[start : start + 3000])
            assert terms(node, name, text) == normalizing(text)
            text = text.replace("\u0130", "")  # its lower case has two characters in tantivy
            assert terms(node, name, text, "rerank_content") == embedded.analyze(text)


# (language, text, terms here, terms of the embedded engine with tantivy 0.27)
DIFFERENCES = [
    ("de", "findet", ["findet"], ["find"]),
    ("en", "university", ["univers"], ["universiti"]),
    ("es", "educacion", ["educacion"], ["educ"]),
    ("fr", "palais", ["pal"], ["palais"]),
    ("nl", "voor één", ["vor", "een"], ["voor", "één"]),
    ("sv", "livet", ["livet"], ["liv"]),
    (None, "foo_bar it's 3.14", ["foo_bar", "it's", "3.14"], ["foo", "bar", "it", "s", "3", "14"]),
    ("ja", "\u6771\u4eac\u90fd", ["\u6771\u4eac", "\u4eac\u90fd"], ["\u6771", "\u4eac", "\u90fd"]),
]


@pytest.mark.parametrize(("lang", "text", "here", "there"), DIFFERENCES)
def test_known_differences_from_the_local_engine(node, lang, text, here, there):
    with index(node, "tmpl-test", index_body(lang, shards=1, replicas=0)) as name:
        assert terms(node, name, text) == here
    if metadata.version("tantivy").startswith("0.27."):
        assert Terms(lang)(text) == there


TINY = {
    "a": {"title": "Red fox", "text": "a red fox"},
    "b": {"title": "Fox", "text": "jumps over the dog"},
    "c": {"title": "Dog", "text": "sleeps"},
}


def fill(node: Node, name: str) -> None:
    for key, document in TINY.items():
        node.request("PUT", f"/{name}/_doc/{key}", {"id": key, **document})
    node.request("POST", f"/{name}/_refresh")


def counts(word: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the frequency of the word by document, and the lengths of all documents."""
    words = {key: " ".join(d.values()).lower().split() for key, d in TINY.items()}
    return {k: w.count(word) for k, w in words.items() if word in w}, {k: len(w) for k, w in words.items()}


@pytest.mark.parametrize("word", ["fox", "red", "dog"])
def test_tfidf_scores_match_the_formula(node, word):
    frequency, length = counts(word)
    idf = math.log((1 + len(TINY)) / (1 + len(frequency))) + 1
    expected = {k: 2.0 * idf**2 * (1 + math.log(f)) / math.sqrt(length[k]) for k, f in frequency.items()}
    with index(node, "tmpl-test", index_body("en", shards=1, replicas=0)) as name:
        fill(node, name)
        query = {"match": {"content.tfidf": {"query": word, "boost": 2.0}}}
        assert scores(node, name, query) == pytest.approx(expected, rel=1e-6)


def bm25(word: str, k1: float, b: float) -> Any:
    frequency, length = counts(word)
    idf = math.log(1 + (len(TINY) - len(frequency) + 0.5) / (len(frequency) + 0.5))
    mean = sum(length.values()) / len(length)
    norm = {k: k1 * (1 - b + b * length[k] / mean) for k in frequency}
    return pytest.approx({k: idf * f / (f + norm[k]) for k, f in frequency.items()}, rel=1e-6)


def test_k1_and_b_can_be_configured(node):
    query = {"match": {"content": "fox"}}
    with index(node, "tmpl-test", index_body("en", shards=1, replicas=0, k1=0.9, b=0.4)) as name:
        fill(node, name)
        assert scores(node, name, query) == bm25("fox", 0.9, 0.4)
        # docs/opensearch/documents.md describes this for an existing index.
        node.request("POST", f"/{name}/_close")
        changed = {"index.similarity.rerank_bm25": {"type": "BM25", "k1": 2.0, "b": 0.1}}
        node.request("PUT", f"/{name}/_settings", changed)
        node.request("POST", f"/{name}/_open")
        node.request("GET", "/_cluster/health/tmpl-test?wait_for_status=green&timeout=55s")
        assert scores(node, name, query) == bm25("fox", 2.0, 0.1)


def test_title_and_text_can_be_highlighted_but_not_content(node):
    with index(node, "tmpl-test", index_body("en", shards=1, replicas=0)) as name:
        fill(node, name)
        body = {"query": {"match": {"content": "jumping fox"}}}
        fields = {"title": {}, "text": {}, "content": {}}
        body["highlight"] = {"fields": fields, "require_field_match": False}
        hits = node.request("POST", f"/{name}/_search", body)["hits"]["hits"]
        actual = {hit["_id"]: hit["highlight"] for hit in hits}
    assert actual["b"] == {"title": ["<em>Fox</em>"], "text": ["<em>jumps</em> over the dog"]}


def test_only_mapped_fields_are_indexed_and_the_source_has_no_features(node):
    document = {
        "id": "1",
        "title": "t",
        "categories": ["x", "é" * 9000],
        "links": ["y" * 40000],
        "extra": {"deep": {"er": 1}},
        "other": "z",
        "rerank_features": {"text-1": base64.b64encode(b"\xfb\xff").decode()},
    }
    with index(node, "tmpl-test", index_body(None, shards=1, replicas=0)) as name:
        before = node.request("GET", f"/{name}/_mapping")
        added = {"rerank_features": {"properties": {"text-1": {"type": "binary", "doc_values": True}}}}
        node.request("PUT", f"/{name}/_mapping", {"properties": added})
        node.request("PUT", f"/{name}/_doc/1?refresh=true", document)
        assert scores(node, name, {"term": {"categories": "x"}}).keys() == {"1"}
        assert scores(node, name, {"exists": {"field": "rerank_features.text-1"}}).keys() == {"1"}
        source = node.request("GET", f"/{name}/_doc/1")["_source"]
        assert source == {key: value for key, value in document.items() if key != "rerank_features"}
        stored = {"docvalue_fields": ["id", "rerank_features.text-1"], "_source": False}
        (hit,) = node.request("POST", f"/{name}/_search", stored)["hits"]["hits"]
        # OpenSearch returns Base64 without its padding.
        assert hit["fields"] == {"id": ["1"], "rerank_features.text-1": ["+/8"]}
        after = node.request("GET", f"/{name}/_mapping")
        features = before[name]["mappings"]["properties"]["rerank_features"]
        features["properties"] |= added["rerank_features"]["properties"]
        assert after == before  # dynamic: false everywhere

        # An update reads the source, which has no features, so it deletes them.
        node.request("POST", f"/{name}/_update/1?refresh=true", {"doc": {"title": "u"}})
        assert not scores(node, name, {"exists": {"field": "rerank_features.text-1"}})
