"""The words of an OpenSearch query, by written and by generated examples."""

from __future__ import annotations

import gc
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank.service.query_syntax import parse_query_string, parse_simple_query_string
from rerank.service.query_text import query_text

MATCH = {"match": {"title": "grey wolf"}}

# fmt: off
CASES = [
    ("match, short", MATCH, "grey wolf"),
    ("match, long", {"match": {"title": {"query": "grey wolf", "operator": "and"}}}, "grey wolf"),
    ("match_phrase", {"match_phrase": {"title": {"query": "grey wolf", "slop": 2}}}, "grey wolf"),
    ("match_phrase, short", {"match_phrase": {"title": "grey wolf"}}, "grey wolf"),
    ("multi_match", {"multi_match": {"query": "grey wolf", "fields": ["a", "b^2"]}}, "grey wolf"),
    ("combined_fields", {"combined_fields": {"query": "grey wolf", "fields": ["a"]}}, "grey wolf"),
    ("query_string", {"query_string": {"query": 'title:grey AND "wolf"^2 -dog'}}, "grey wolf"),
    ("simple_query_string", {"simple_query_string": {"query": "grey + wolf -dog"}}, "grey wolf"),
    ("bool, one", {"bool": {"must": MATCH}}, "grey wolf"),
    ("must and should", {"bool": {"must": [MATCH], "should": {"match": {"a": "pup"}}}}, "grey wolf pup"),
    ("bool, filter", {"bool": {"filter": [MATCH]}}, None),
    ("bool, must_not", {"bool": {"must_not": [MATCH], "should": [{"match_all": {}}]}}, None),
    ("as a node writes it", {"bool": {"must": [MATCH], "adjust_pure_negative": True}}, "grey wolf"),
    ("the same text twice", {"bool": {"should": [MATCH, {"match": {"body": " grey  wolf "}}]}}, "grey wolf"),
    ("constant_score", {"constant_score": {"filter": MATCH}}, "grey wolf"),
    ("function_score", {"function_score": {"query": MATCH, "functions": [{"weight": 2}]}}, "grey wolf"),
    ("dis_max", {"dis_max": {"queries": [MATCH, {"match": {"a": "pup"}}]}}, "grey wolf pup"),
    ("nested", {"nested": {"path": "a", "query": MATCH}}, "grey wolf"),
    ("hybrid", {"hybrid": {"queries": [MATCH, {"knn": {"v": {"vector": [1, 2], "k": 3}}}]}}, "grey wolf"),
    ("neural", {"hybrid": {"queries": [{"neural": {"v": {"query_text": "grey wolf"}}}]}}, "grey wolf"),
    ("neural_sparse", {"neural_sparse": {"v": {"query_text": "grey wolf"}}}, "grey wolf"),
    ("has_child", {"has_child": {"type": "a", "query": MATCH}}, "grey wolf"),
    ("spans", {"span_near": {"clauses": [{"span_term": {"a": {"value": "grey"}}}]}}, "grey"),
    ("span, short", {"span_first": {"match": {"span_term": {"a": "wolf"}}, "end": 3}}, "wolf"),
    ("span_not", {"span_not": {"include": {"span_term": {"a": "wolf"}},
        "exclude": {"span_term": {"a": "fox"}}}}, "wolf"),
    ("intervals", {"intervals": {"a": {"all_of": {"intervals": [
        {"match": {"query": "grey", "filter": {"not_before": {"match": {"query": "fox"}}}}},
        {"any_of": {"intervals": [{"fuzzy": {"term": "wolf"}}, {"prefix": {"prefix": "pu"}}]}}],
        "filter": {"containing": {"match": {"query": "den"}}}}}}}, "grey wolf den"),
    ("terms_set", {"terms_set": {"a": {"terms": ["grey", "wolf"], "minimum_should_match": 1}}}, "grey wolf"),
    ("more_like_this", {"more_like_this": {"fields": ["a"], "like": ["grey wolf fox", {"_id": "1"}],
        "unlike": "Fox"}}, "grey wolf"),
    ("a given document", {"more_like_this": {"like": {"doc": {"a": "grey", "b": "wolf"}}}}, "grey wolf"),
    ("wrapper", {"wrapper": {"query": "eyJtYXRjaCI6IHsidGl0bGUiOiAiZ3JleSB3b2xmIn19"}}, "grey wolf"),
    ("damaged wrapper", {"wrapper": {"query": "!"}}, None),
    ("a date", {"match": {"day": "2020-01-31"}}, "2020-01-31"),
    ("a boolean", {"match": {"a": {"query": True}}}, "true"),
    ("a decimal number", {"multi_match": {"query": 1.5, "fields": ["a"]}}, "1.5"),
    ("a number in query_string", {"query_string": {"query": 2020}}, "2020"),
    ("escaped", {"query_string": {"query": "wolf -fox (pup)", "escape": True}}, "wolf -fox (pup)"),
    ("without operators", {"simple_query_string": {"query": "wolf -fox", "flags": "OR|AND"}}, "wolf -fox"),
    ("as flags of a node", {"simple_query_string": {"query": "wolf -fox", "flags": -1}}, "wolf"),
    ("template", {"template": {"bool": {"must": [MATCH], "filter": {"term": {"a": "${a}"}}}}}, "grey wolf"),
    ("boosting", {"boosting": {"positive": MATCH, "negative": {"match": {"a": "dog"}}}}, "grey wolf"),
    ("deep", {"bool": {"must": [{"nested": {"query": {"dis_max": {"queries": [MATCH]}}}}]}}, "grey wolf"),
    ("match_all", {"match_all": {}}, None),
    ("term", {"term": {"lang": "en"}}, None),
    ("a number", {"match": {"year": 2020}}, "2020"),
    ("blank", {"match": {"title": "  "}}, None),
    ("no query", None, None),
    ("nonsense", {"bool": [1, {"must": 7}], "match": 3, "dis_max": {"queries": "x"}}, None),
]
# fmt: on


@pytest.mark.parametrize(("query", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_query_text_of_each_kind_of_query(query, expected):
    assert query_text(query) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain words", "plain words"),
        ("x-rays of covid-19", "x-rays of covid-19"),
        ("grey OR wolf AND pup", "grey wolf pup"),
        ("grey NOT wolf", "grey"),
        ("grey -(wolf OR (red pup)) fox", "grey fox"),
        ("grey NOT (wolf OR (red AND (pup OR (a OR (b c))))) fox", "grey fox"),
        ("grey NOT title:(wolf AND (red pup)) fox", "grey fox"),
        ("(grey NOT (wolf)) fox", "grey fox"),
        ('grey -"red wolf" fox', "grey fox"),
        ('grey -"red \\" wolf" fox', "grey fox"),
        ("grey -red\\ wolf fox", "grey fox"),
        ("grey -red\u00a0wolf fox", "grey fox"),  # for OpenSearch, this space does not end a word
        ("grey -red\u3000wolf", "grey wolf"),
        ("grey - wolf", "grey wolf"),
        ("grey!wolf fox", "grey fox"),
        ("grey -title:wolf fox", "grey fox"),
        ("grey -[a TO b] fox", "grey fox"),
        ("title:(grey wolf)", "grey wolf"),
        ("wol? gr*y roam~ lup~2 pup^3.5", "wol gr y roam lup pup"),
        ("year:[1990 TO 2000] wolf", "wolf"),
        ("year:{1990 TO *] wolf", "wolf"),
        ("year:>=1990 wolf", "wolf"),
        ("_exists_:title wolf", "wolf"),
        ("name:/joh?n/ wolf", "wolf"),
        ("C++ \\(wolf\\)", "C++ (wolf)"),
        ('"unclosed phrase', "unclosed phrase"),
        ("wolf))) pup", "wolf pup"),
        ("(((", None),
    ],
)
def test_operators_are_not_words(text, expected):
    assert query_text({"query_string": {"query": text}}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wolf -(fox (dog cat) (lynx)) pup", "wolf pup"),
        ("wolf --fox", "wolf fox"),  # two signs negate each other
        ("wolf - fox", "wolf fox"),
        ("wolf -fox\u3000dog", "wolf"),  # for OpenSearch, this space does not end a word
        ('wolf -"red fox"~2 pup', "wolf pup"),
        ('wolf "red fox', "wolf red fox"),
        ("wolf -(fox dog", "wolf fox dog"),  # without its end, a group has no effect
        ("(wolf | e-mail) + roam~1 lup*", "wolf e-mail roam lup"),
        ("wolf \\-fox", "wolf -fox"),
    ],
)
def test_operators_of_simple_query_string_are_not_words(text, expected):
    assert query_text({"simple_query_string": {"query": text}}) == expected


INCLUDED, EXCLUDED = st.sampled_from(["wolf", "pup", "x-ray"]), st.sampled_from(["fox", "dog", "lynx"])


def nested(words: st.SearchStrategy[str], group: str) -> st.SearchStrategy[str]:
    """Return texts with at most eight of these words or phrases, in groups at any depth.

    group: a group with a place for clauses.
    """
    phrases = st.lists(words, min_size=1, max_size=3).map(lambda parts: f'"{" ".join(parts)}"')
    return st.recursive(
        words | phrases,
        lambda inner: st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: group.format(" ".join(parts))
        ),
        max_leaves=8,
    )


@pytest.mark.parametrize(
    ("kind", "group", "prefixes"),
    [
        ("query_string", "({})", ["NOT ", "-", "!", "AND NOT ", "title:a -body:", "-body:", "NOT  "]),
        ("query_string", "(a:({}) OR b)", ["NOT ", "-"]),
        ("simple_query_string", "({})", ["-", "| -", "+-"]),
    ],
)
@settings(max_examples=50)
@given(data=st.data())
def test_excluded_words_are_never_words_of_the_query(kind, group, prefixes, data):
    prefix = st.sampled_from(prefixes)
    excluded = st.builds("{}{}".format, prefix, nested(EXCLUDED, group))
    clauses = data.draw(st.lists(nested(INCLUDED, group) | excluded, min_size=1, max_size=6))
    text = " ".join(clauses)
    words = set((query_text({kind: {"query": text}}) or "").split()) - {"a", "b"}
    assert words == {word for word in ("wolf", "pup", "x-ray") if word in text}, text


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["bool", "must", "match", "query"]) | st.text(), inner)
    ),
)


@settings(max_examples=20)
@given(JSON)
def test_any_json_is_accepted_as_a_query(query):
    actual = query_text(query)
    assert actual is None or actual.strip() == actual != ""


@given(st.text('ab"()-+!:[]{}~^/*?\\ ANDORT'))
def test_any_syntax_is_accepted(text):
    for kind in ("query_string", "simple_query_string"):
        actual = query_text({kind: {"query": text}})
        assert len(actual or "") <= len(text)


@pytest.mark.parametrize(
    "piece",
    ["(", '-"', "NOT ", "a:", "[", "~1", "(/", "!", "\\", "-(", "a:[", "wolf ", '["', '("', "/\\/", ')"'],
)
def test_the_time_grows_only_linearly_with_the_length(piece):
    """A text of eight times the length takes 8 times the processor time, and 64 times if it is quadratic."""
    for read in (parse_query_string, parse_simple_query_string):
        short, long = (processor_seconds(read, piece * (length // len(piece))) for length in (4000, 32_000))
        assert long < 24 * max(short, 0.02)


def processor_seconds(read, text):
    gc.disable()  # a collection of all objects of the tests takes as long as a long text
    try:
        begin = time.process_time()
        read(text)
        return time.process_time() - begin
    finally:
        gc.enable()


def test_names_of_fields_are_compared_quickly():
    """Users choose these names. With pattern matching, this test would take minutes."""
    names = [f"a*b*c{i}" for i in range(10_000)] + ["*" * 10_000 + "x"]
    query = {"bool": {"must": [{"multi_match": {"query": "wolf", "fields": names}}] * 100}}
    begin = time.process_time()
    assert query_text(query, ["title", "b*d*y"]) == "wolf"
    assert time.process_time() - begin < 10


def test_a_deep_query_is_read():
    query = MATCH
    for _ in range(5000):
        query = {"bool": {"must": [query]}}
    assert query_text(query) == "grey wolf"


def test_only_a_limited_number_of_clauses_is_read():
    looked = 0

    class Clause(dict):
        def items(self):
            nonlocal looked
            looked += 1
            return super().items()

    clause = Clause(match={"a": "b"})
    for query in ({"bool": {"must": [clause] * 50_000}}, [[clause] * 1000] * 1000):
        looked = 0
        assert query_text(query) == "b"
        assert 10_000 < looked <= 20_000


FILTERED = {
    "bool": {
        "must": [{"match": {"body.en": "grey wolf"}}, {"match": {"permissions": "public"}}],
        "should": [{"match": {"year": {"query": "2000"}}}],
    }
}


@pytest.mark.parametrize(
    ("query", "fields", "text"),
    [
        (FILTERED, (), "grey wolf public 2000"),
        (FILTERED, ("name", "body"), "grey wolf"),
        (FILTERED, ("body.*",), "grey wolf"),
        (FILTERED, ("title",), "grey wolf public 2000"),  # no clause searches in this field
        ({"multi_match": {"query": "wolf", "fields": ["name^3", "tags"]}}, ("name",), "wolf"),
        ({"multi_match": {"query": "wolf", "fields": ["na*"]}}, ("name",), "wolf"),
        ({"bool": {"must": [{"query_string": {"query": "wolf"}}, MATCH]}}, ("body",), "wolf"),
        ({"bool": {"must": [{"match": {"year": "2000"}}, MATCH]}}, ("title",), "grey wolf"),
    ],
)
def test_only_words_of_the_given_fields_are_used(query, fields, text):
    assert query_text(query, fields) == text
