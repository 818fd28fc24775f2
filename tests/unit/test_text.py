"""Analyzers and the splitting of texts into words."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank.errors import UsageError
from rerank.text import STEMMERS, Terms, analyzer, language, normalize, words


@pytest.mark.parametrize(
    ("code", "expected"),
    [(None, None), ("en", "en"), ("EN", "en"), ("en-GB", "en"), ("pt_BR", "pt"), ("haw", "haw")],
)
def test_language_codes_are_shortened(code: str | None, expected: str | None) -> None:
    assert language(code) == expected


@pytest.mark.parametrize("code", ["", "english", "e", "12", "-", "e n"])
def test_invalid_language_codes_are_refused(code: str) -> None:
    with pytest.raises(UsageError, match="is not a language code"):
        language(code)


@pytest.mark.parametrize("lang", sorted(STEMMERS))
def test_every_stemmer_exists(lang: str) -> None:
    assert analyzer(lang).analyze("a 2")[-1] == "2"


@pytest.mark.parametrize(
    ("lang", "text", "terms"),
    [
        ("en", "The libraries' sorting, FASTER!", ["the", "librari", "sort", "faster"]),
        ("en-GB", "running", ["run"]),
        ("it", "dell'acqua le librerie", ["dell", "acqua", "le", "librer"]),
        ("de", "Die Bibliotheken", ["die", "bibliothek"]),
        (None, "running Libraries", ["running", "libraries"]),
        ("pl", "running Biblioteki", ["running", "biblioteki"]),
        (None, "東京タワー tower_bridge", ["東", "京", "タ", "ワ", "ー", "tower", "bridge"]),
        ("ja", "日本語text", ["日", "本", "語", "text"]),
        (None, "हिन्दी 한국어", ["हिन्दी", "한국어"]),
        ("en", "", []),
        ("en", "?! ... --", []),
    ],
)
def test_analyzers_return_stemmed_terms(lang: str | None, text: str, terms: list[str]) -> None:
    assert analyzer(lang).analyze(text) == terms


@pytest.mark.parametrize("lang", ["en", None])
def test_very_long_tokens_are_dropped(lang: str | None) -> None:
    assert analyzer(lang).analyze(f"a {'x' * 64} {'y' * 65} b") == ["a", "x" * 64, "b"]


def test_several_threads_can_share_an_analyzer() -> None:
    terms = Terms("en")
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(terms, ["sorting graphs"] * 500)) == [["sort", "graph"]] * 500


def test_a_lone_surrogate_is_not_a_term() -> None:
    assert Terms(None)("a \ud800 b") == ["a", "b"]


def test_normalize_composes_letters() -> None:
    assert normalize("plain") == "plain"
    assert normalize("e\u0301") == normalize("é") == "é"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Sorting, FASTER! (2nd ed.)", ["sorting", "faster", "2nd", "ed"]),
        ("don't l'été e\u0301te\u0301", ["don", "t", "l", "été", "été"]),
        ("snake_case C++ a.b@c.org", ["snake", "case", "c", "a", "b", "c", "org"]),
        ("東京タワー", ["東", "京", "タ", "ワ", "ー"]),
        ("python入門2", ["python", "入", "門", "2"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("한국어 Ελληνικά Русский", ["한국어", "ελληνικά", "русский"]),
        ("𠀀x", ["𠀀", "x"]),
        ("½ ٣ x²", ["½", "٣", "x²"]),
        ("\ud800 lone", ["lone"]),
        ("😀—“quoted”", ["quoted"]),
    ],
)
def test_words_splits_texts_of_any_script(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@settings(max_examples=30)
@given(st.text())
def test_splitting_words_again_changes_nothing(text: str) -> None:
    found = words(text)
    assert all(found)
    assert not any(char.isspace() or char == "_" for word in found for char in word)
    assert words(" ".join(found)) == found
