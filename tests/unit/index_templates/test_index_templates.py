"""The index templates without a cluster: every language has a template, and the files are consistent."""

from __future__ import annotations

import re
import sys
import unicodedata
from importlib import resources

import pytest
from rerank.index_templates import analysis, component, index_body

from rerank.documents.text import CJK, SPACELESS, STEMMERS, pairs_pattern, searchable

FILES = sorted(
    file.name.removesuffix(".json")
    for file in resources.files("rerank.index_templates").iterdir()
    if file.name.endswith(".json")
)
LANGUAGES = sorted(name.removeprefix("rerank-index-") for name in FILES if name.startswith("rerank-index-"))


@pytest.mark.parametrize(
    ("lang", "expected"),
    [("en", "en"), ("pt_BR", "pt"), ("nn", "no"), ("NB", "no"), ("zh-Hant", "cjk"), ("ko", "cjk")]
    + [(None, "neutral"), ("haw", "neutral"), ("cjk", "neutral")],
)
def test_a_language_code_selects_its_analysis(lang, expected):
    assert analysis(lang) == expected


def test_every_stemmed_language_has_an_analysis_and_a_template():
    assert {analysis(code) for code in STEMMERS} | {"cjk", "neutral"} == set(LANGUAGES)
    composed = {name for lang in LANGUAGES for name in component(f"rerank-index-{lang}")["composed_of"]}
    assert composed | {f"rerank-index-{lang}" for lang in LANGUAGES} == set(FILES)


def test_the_char_filters_have_the_rules_of_the_local_engine():
    filters = component("rerank-normalization")["template"]["settings"]["index"]["analysis"]["char_filter"]
    rules = {}
    for rule in filters["rerank_forms"]["mappings"]:
        before, _, after = rule.partition("=>")
        rules[unescape(before)] = unescape(after)
    assert {before: index_form(before) for before in rules} == rules
    old = unicodedata.ucd_3_2_0
    for code in range(sys.maxunicode):
        character = chr(code)
        if old.category(character) in ("Cn", "Co", "Cs") or 0xAC00 <= code <= 0xD7A3:
            continue
        assert rules.get(character, character) == index_form(character)
        decomposed = unicodedata.normalize("NFD", character)
        assert rules.get(decomposed, decomposed) in (index_form(character), character)
    assert filters["rerank_pairs"]["pattern"] == pairs_pattern(SPACELESS)
    assert filters["rerank_cjk_pairs"]["pattern"] == pairs_pattern(SPACELESS + CJK)


def index_form(text: str) -> str:
    return searchable(text, stemmed=False)


def unescape(text: str) -> str:
    return re.sub(r"\\u(\w{4})", lambda match: chr(int(match[1], 16)), text)


def test_bodies_are_independent():
    index_body("en", shards=1, replicas=0, k1=2.0)["mappings"]["properties"].clear()
    body = index_body("en", shards=1, replicas=0)
    assert body["mappings"]["properties"]
    assert body["settings"]["index"]["similarity"]["rerank_bm25"] == {"type": "BM25", "k1": 1.2, "b": 0.75}
