"""Analyzers and the splitting of texts into words."""

from __future__ import annotations

import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank.common.errors import UsageError
from rerank.documents.text import STEMMERS, Terms, analyzer, language, normalize, words


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (None, None),
        ("en", "en"),
        ("EN", "en"),
        ("en-GB", "en"),
        ("pt_BR", "pt"),
        ("haw", "haw"),
        ("eng", "en"),
        ("GER", "de"),
    ],
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
@pytest.mark.parametrize("letter", ["x", "\u0448"])
def test_very_long_words_are_cut(lang: str | None, letter: str) -> None:
    assert Terms(lang)(f"a {letter * 64} {letter * 300} b") == ["a", letter * 64, letter * 64, "b"]


SAME_TERMS = [
    ("decomposed accents", "vi", "Vi\u1ec7t \u0111e\u0323p", "vie\u0323\u0302t \u0111\u1eb9p"),
    ("decomposed Korean", "ko", "\ud55c\uad6d\uc5b4", "\u1112\u1161\u11ab\u1100\u116e\u11a8\u110b\u1165"),
    ("soft hyphen", "en", "micro\u00adorgan\u00adisms", "microorganisms"),
    ("zero-width space, word joiner, BOM", "en", "\ufeffre\u200brank\u2060ing", "reranking"),
    ("directional marks", "ar", "\u200f\u0643\u062a\u0627\u0628\u200e", "\u0643\u062a\u0627\u0628"),
    (
        "zero-width joiners",
        "fa",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\u0645\u06cc\u062e\u0648\u0627\u0647\u0645",
    ),
    ("full width", "ja", "\uff30\uff59\uff54\uff48\uff4f\uff4e\uff13", "Python3"),
    ("half width", "ja", "\uff76\uff9e\uff77\uff9e", "\u30ac\u30ae"),
    ("ligatures", "de", "\ufb02ie\u00dfen Scha\ufb00en \ufb01nden", "flie\u00dfen schaffen finden"),
    ("entities", "en", "Wnt/&beta;-catenin &amp; &#956;m &#x3bc;g", "wnt \u03b2 catenin \u03bcm \u03bcg"),
    ("entities of other letters", "cs", "&Ccaron;esko &lstrok;", "\u010desko \u0142"),
    ("micro sign", "en", "5 \u00b5m", "5 \u03bcm"),
    ("raised and lowered digits", "en", "CO\u2082 m\u00b2", "co2 m2"),
    ("Roman numbers", "en", "type \u2163", "type IV"),
    ("radicals of exports", "zh", "\u2f00\u2f08", "\u4e00\u4eba"),
    ("Arabic forms", "ar", "\ufedb\ufe98\ufe8e\ufe8f", "\u0643\u062a\u0627\u0628"),
    ("Turkish", "tr", "\u0130STANBUL I\u015eIK", "istanbul \u0131\u015f\u0131k"),
    ("final sigma", None, "\u039f\u0394\u039f\u03a3", "\u03bf\u03b4\u03bf\u03c2"),
    ("stretched words", "fa", "\u06a9\u0640\u0640\u062a\u0627\u0628", "\u06a9\u062a\u0627\u0628"),
    ("dotted I elsewhere", "en", "\u0130stanbul", "istanbul"),
]


@pytest.mark.parametrize("kept", [0, 3, 50_000])
@pytest.mark.parametrize("lang", ["ar", "de", "en", "ta", "tr", None])
def test_words_are_stemmed_once_with_the_same_result(monkeypatch, lang, kept):
    """Terms also have no spaces: the text index gets them as one text."""
    monkeypatch.setattr("rerank.documents.text._MAX_STEMS", kept)
    text = "Sorted houses, Häuser und evler KİTAP I\u00a0am\u2003الكتب மொழிகள் \x0b sorted HOUSES 日本語 a_b"
    terms = Terms(lang)
    for _ in range(2):
        assert terms(text) == analyzer(lang).analyze(terms.searchable(text))
        assert " ".join(terms(text)).split(" ") == " ".join(terms(text)).split() == terms(text)


@pytest.mark.parametrize(
    ("lang", "text", "same"), [case[1:] for case in SAME_TERMS], ids=[case[0] for case in SAME_TERMS]
)
def test_spellings_of_the_same_word_are_the_same_terms(lang: str | None, text: str, same: str) -> None:
    terms = Terms(lang)(text)
    assert terms
    assert terms == Terms(lang)(same)
    if lang != "tr":
        assert words(text) == words(same)


def test_every_character_is_normalized_alone_as_in_a_text() -> None:
    """The text has a character that needs all steps. Fast paths must not skip another character."""
    for code in range(0x80, 0x30000):
        character = chr(code)
        if unicodedata.category(character) != "Cs":
            assert normalize(f"a {character} \u00ad") == normalize(f"a {character} ")


def test_similar_letters_and_symbols_stay() -> None:
    assert (
        normalize("\u00e9 \u0430 \u0131 \u00df \u2122 \u00bd AT&T; &unknown; 1&2")
        == "\u00e9 \u0430 \u0131 \u00df \u2122 \u00bd AT&T; &unknown; 1&2"
    )


@pytest.mark.parametrize(
    ("lang", "text", "word"),
    [
        (
            "th",
            "\u0e01\u0e32\u0e23\u0e23\u0e31\u0e01\u0e29\u0e32\u0e2a\u0e38\u0e02\u0e20\u0e32\u0e1e\u0e17\u0e38\u0e01\u0e27\u0e31\u0e19"
            * 9,
            "\u0e2a\u0e38\u0e02\u0e20\u0e32\u0e1e",
        ),
        ("km", "\u1797\u17b6\u179f\u17b6\u1781\u17d2\u1798\u17c2\u179a", "\u1781\u17d2\u1798\u17c2\u179a"),
        ("lo", "\u0e9e\u0eb2\u0eaa\u0eb2\u0ea5\u0eb2\u0ea7", "\u0ea5\u0eb2\u0ea7"),
        ("my", "\u1019\u103c\u1014\u103a\u1019\u102c\u1018\u102c\u101e\u102c", "\u1018\u102c\u101e\u102c"),
        ("en", "\u6a5f\u68b0\u5b66\u7fd2" * 20 + "AI", "\u5b66\u7fd2"),
        (
            "de",
            "\u0e2a\u0e38\u0e02\u0e20\u0e32\u0e1e\u0e17\u0e35\u0e48\u0e14\u0e35",
            "\u0e2a\u0e38\u0e02\u0e20\u0e32\u0e1e",
        ),
    ],
)
def test_words_in_texts_without_spaces_are_terms(lang: str, text: str, word: str) -> None:
    terms = Terms(lang)(word)
    assert terms
    assert set(terms) <= set(Terms(lang)(text))
    assert max(map(len, Terms(lang)(text))) < 10


def test_several_threads_can_share_an_analyzer() -> None:
    terms = Terms("en")
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(terms, ["sorting graphs"] * 500)) == [["sort", "graph"]] * 500


def test_a_lone_surrogate_is_not_a_term() -> None:
    assert Terms(None)("a \ud800 b") == ["a", "b"]


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
        ("½ ٣ x²", ["½", "٣", "x2"]),
        ("\ud800 lone", ["lone"]),
        ("😀—“quoted”", ["quoted"]),
    ],
)
def test_words_splits_texts_of_any_script(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@settings(max_examples=30)
@given(st.text())
def test_splitting_words_again_changes_nothing(text: str) -> None:
    actual = words(text)
    assert all(actual)
    assert not any(char.isspace() or char == "_" for word in actual for char in word)
    assert words(" ".join(actual)) == actual
