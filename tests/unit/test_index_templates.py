"""The index templates without a cluster: every language has a template, and the files are consistent."""

from __future__ import annotations

from importlib import resources

import pytest
from rerank.index_templates import analysis, component, index_body

from rerank.text import STEMMERS

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


def test_bodies_are_independent():
    index_body("en", shards=1, replicas=0, k1=2.0)["mappings"]["properties"].clear()
    body = index_body("en", shards=1, replicas=0)
    assert body["mappings"]["properties"]
    assert body["settings"]["index"]["similarity"]["rerank_bm25"] == {"type": "BM25", "k1": 1.2, "b": 0.75}
