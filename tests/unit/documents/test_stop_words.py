"""Stop words of queries, and the languages that they show."""

import pytest
from tantivy import Filter, TextAnalyzerBuilder, Tokenizer

from rerank.documents.stop_words import WITHOUT_STOP_WORDS, guess_language, query_language, without_stop_words
from rerank.documents.text import STEMMERS

ROMANIAN = "Lupul trăiește în pădurile din Europa și din Asia, iar haita este condusă de o pereche de lupi."
TURKISH = "Kurt bir memeli türüdür ve bu tür için ormanlar çok önemlidir, ama dağlarda da yaşar."


@pytest.mark.parametrize(("text", "lang"), [(ROMANIAN, "ro"), (TURKISH, "tr")])
def test_the_language_of_a_collection_is_not_a_similar_one(text, lang):
    assert guess_language([text]) == lang


@pytest.mark.parametrize(
    ("text", "lang", "expected"),
    [
        ("cum se face o pizza de la zero", "ro", ["face", "pizza", "zero"]),
        ("en iyi film bu ne de olsa", "tr", ["iyi", "film", "olsa"]),
        ("το όνομα του λύκου", "el", ["το", "όνομα", "του", "λύκου"]),
    ],
)
def test_a_query_in_the_language_of_the_documents_stays_in_it(text, lang, expected):
    """Romanian and Spanish share words, such as `de` and `la`, and Turkish and Dutch, such as `en`."""
    assert query_language(text, lang) == lang
    assert without_stop_words(text, lang).split() == expected


@pytest.mark.parametrize("lang", sorted(WITHOUT_STOP_WORDS))
def test_there_is_still_no_list_for_these_languages(lang):
    builder = TextAnalyzerBuilder(Tokenizer.whitespace())
    with pytest.raises(ValueError, match="stop"):
        builder.filter(Filter.stopword(STEMMERS[lang].lower()))
