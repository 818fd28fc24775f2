"""Stop words of queries: the language that they show, and a query without them."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Set
from functools import cache, lru_cache, partial

from rerank.documents.text import STEMMERS, WORD, language_or_none, normalize, words

STOP_WORDS = {
    # Lucene's list and the words of questions, without "no" and "not".
    "en": "a about an and any are as at be been between but by can did do does for from had has have how i"
    " if in into is it its me my of on or our should such than that the their then there these they"
    " this those to was we were what when where which who whose why will with would you your",
    # People also write Romanian without its diacritics, or with the cedilla of older keyboards.
    "ro": "a al ale ca că care ce cea cei cel cele cu cum când cand de despre din după dupa este fi fost"
    " fără fara în in îi îl la lor lui mai nici o pe pentru până pana prin sa să sau se și şi si sunt"
    " un una unde unei unor unui",
    "tr": "ama bazı bir bu bunu bunun çok da daha de diye en gibi hem için ile ise kadar ki mi mı mu mü"
    " nasıl ne neden nerede o olan olarak olduğu onun şu ve veya ya",
}
"""Language -> its stop words, which replace the list of Snowball. It has none for Romanian and Turkish."""

_STOP_WORD_SETS = {lang: frozenset(text.split()) for lang, text in STOP_WORDS.items()}

WITHOUT_STOP_WORDS = frozenset({"ar", "el", "ta"})
"""Languages with a stemmer but without a list. Their queries keep all words."""

LEAST_STOP_WORDS = 0.08
"""Smallest share of stop words in texts of a language."""


class _StopWords(threading.local):
    """Analyzers that remove the stop words of a language by Snowball's lists, per thread."""

    def __init__(self) -> None:
        from tantivy import Filter, TextAnalyzerBuilder, Tokenizer

        self.analyzers = {}
        for lang in STEMMERS.keys() - STOP_WORDS.keys() - WITHOUT_STOP_WORDS:
            stop_words = Filter.stopword(STEMMERS[lang].lower())
            self.analyzers[lang] = TextAnalyzerBuilder(Tokenizer.whitespace()).filter(stop_words).build()


_stop_words = cache(_StopWords)

_LONGEST_REMEMBERED = 200
"""Characters; longer texts of users take no memory in the cache."""

_LONGEST_STOP_WORD = 30
"""Characters; longer words of users are not looked up, and take no memory in the cache."""


def _languages(word: str) -> frozenset[str]:
    """Return the languages with this stop word, in lower case."""
    if len(word) > _LONGEST_STOP_WORD:
        return frozenset()
    return _languages_of_stop_word(word)


@lru_cache(100_000)
def _languages_of_stop_word(word: str) -> frozenset[str]:
    languages: list[str] = []
    for lang, stop_words in _STOP_WORD_SETS.items():
        if word in stop_words:
            languages.append(lang)
    for lang, remover in _stop_words().analyzers.items():
        if not remover.analyze(word):
            languages.append(lang)
    return frozenset(languages)


def guess_language(texts: Iterable[str], max_words: int = 20_000) -> str | None:
    """Return the language of texts, by the frequency of stop words, or None if it is not clear.

    It is clear if :data:`LEAST_STOP_WORDS` of all words are stop words of a language, and no other language
    has nearly as many.

    max_words: the other texts are not read after this number of words.

    >>> guess_language(["wie funktioniert die Suche und was kostet sie", "das Spiel ist nicht neu"])
    'de'
    >>> guess_language(["grey wolf", "red fox"]) is None
    True
    """
    word_counts = Counter[str]()
    for text in texts:
        word_counts.update(words(text))
        if word_counts.total() >= max_words:
            break
    stop_word_counts = Counter[str]()
    for word, count in word_counts.items():
        stop_word_counts.update(dict.fromkeys(_languages(word), count))
    if not stop_word_counts:
        return None
    # Of equal counts, the first language in the alphabet comes first.
    ranked = sorted(stop_word_counts.items(), key=lambda item: (-item[1], item[0]))
    (best, highest), (_, second_highest) = (*ranked, ("", 0))[:2]
    required_count = max(LEAST_STOP_WORDS * word_counts.total(), 1.2 * second_highest)
    if highest <= required_count:
        return None
    return best


def query_language(text: str, lang: str | None) -> str | None:
    """Return the language of a query, by its stop words. It is usually the language of the documents.

    Another language needs two more different stop words than ``lang`` in a text, English one more: names have
    foreign words. Single letters do not count.

    lang: language of the documents. Without a stemmer for it, it is returned for each query.

    >>> query_language("strategy game of ancient warfare", "de"), query_language("die hard", "en")
    ('en', 'en')
    >>> query_language("was kostet die Suche und wie funktioniert sie", "en")
    'de'
    """
    code = language_or_none(lang)
    if code not in STEMMERS:
        return lang
    stop_words = Counter[str]()
    for word in set(words(text)):
        if len(word) > 1:
            stop_words.update(_languages(word))
    expected = stop_words.pop(code, 0)
    stop_words.subtract(stop_words.keys() - {"en"})  # they need one more
    best = max(stop_words, key=lambda other: (stop_words[other], other == "en", other), default="")
    if stop_words[best] > expected:
        return best
    return lang


def without_stop_words(text: str, lang: str | None) -> str:
    """Return the text of a query without the stop words of a language. The rest is unchanged.

    Words in capitals stay (``IT``), except a single letter at the start, or if the whole text is in capitals.
    A query of stop words only stays whole. The gain is in ``benchmarks/decisions.md``.

    lang: language of the documents. Without a list of its stop words, the text does not change.

    >>> without_stop_words("What is the cost of IT?", "en")
    '   cost  IT?'
    >>> without_stop_words("to be or not to be", "en"), without_stop_words("the who", "en")
    ('   not  ', 'the who')
    """
    code = language_or_none(lang)
    if code not in STEMMERS:
        return text
    if len(text) > _LONGEST_REMEMBERED:
        return _shorten(text, code)
    return _shorten_remembered(text, code)


def _shorten(text: str, code: str) -> str:
    """Return a text without the stop words of the language with this code."""
    stop_words = {word for word in words(text) if code in _languages(word)}
    shortened = WORD.sub(partial(_without_stop_word, stop_words=stop_words), text)
    if not WORD.search(shortened):
        return text
    return shortened


_shorten_remembered = lru_cache(4096)(_shorten)  # each signal of a stack reads the text of a query


def _without_stop_word(word: re.Match[str], stop_words: Set[str]) -> str:
    """Return a word of a text, or an empty text for a stop word that is not an abbreviation."""
    if normalize(word[0].lower()) in stop_words and not _is_abbreviation(word):
        return ""
    return word[0]


def _is_abbreviation(word: re.Match[str]) -> bool:
    """Return whether a word is in capitals, and not only because it starts the text or all words are."""
    if not word[0].isupper() or word.string.isupper():
        return False
    return len(word[0]) > 1 or word.start() > 0
