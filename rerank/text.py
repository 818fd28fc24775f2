"""Languages, analyzers, words, and text for messages.

NDCG on seven collections: stemming +0.02 to +0.06, folding at most +0.001. Documents keep their stop words.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from rerank.errors import UsageError

if TYPE_CHECKING:
    from tantivy import TextAnalyzer

ANALYZER_VERSION = 1
"""Changes if the same text can give other terms; an index of another version is not opened."""

STEMMERS = {
    "ar": "Arabic",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "fi": "Finnish",
    "fr": "French",
    "hu": "Hungarian",
    "it": "Italian",
    "nb": "Norwegian",
    "nl": "Dutch",
    "nn": "Norwegian",
    "no": "Norwegian",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sv": "Swedish",
    "ta": "Tamil",
    "tr": "Turkish",
}
"""Two-letter language code -> the Snowball stemmer for it."""

ENGLISH_STOP_WORDS = frozenset(
    "a about an and any are as at be been between but by can did do does for from had has have how i if in"  # noqa: SIM905
    " into is it its me my of on or our should such than that the their then there these they this those to"
    " was we were what when where which who whose why will with would you your".split()
)
"""Lucene's list and the words of questions, without "no" and "not"."""

LEAST_STOP_WORDS = 0.08
"""Smallest share of stop words in texts of a language."""

LONGEST_TERM = 64
"""Longer tokens (in UTF-8 bytes) are encoded data, not words, and are not indexed."""

_MARKED = frozenset({"ar", "ta"})
"""Languages with combining marks in words; the fast tokenizer would split there."""

_CJK = r"\p{Han}\p{Hiragana}\p{Katakana}"
_TOKEN = rf"[{_CJK}]|[\w--[_{_CJK}]]+"
"""Letters, marks and digits as one token, each CJK character as its own (Rust regex syntax)."""


def language(code: str | None) -> str | None:
    """Return the primary language in lower case (``en-GB`` -> ``en``), or None. Raises UsageError."""
    if code is None:
        return None
    primary = code.replace("_", "-").split("-")[0].lower()
    if not re.fullmatch(r"[a-z]{2,3}", primary):
        raise UsageError(f"{code!r} is not a language code; give two letters, for example en, it or de")
    return primary


def language_or_none(code: str | None) -> str | None:
    """Like :func:`language`, but None for other texts.

    >>> language_or_none("en-GB"), language_or_none("English")
    ('en', None)
    """
    try:
        return language(code)
    except UsageError:
        return None


def analyzer(lang: str | None) -> TextAnalyzer:
    """Return the analyzer, which splits, lower-cases and stems words.

    Without a stemmer for ``lang``, Chinese and Japanese characters are terms.

    >>> analyzer("en").analyze("Sorting, faster!")
    ['sort', 'faster']
    """
    from tantivy import Filter, TextAnalyzerBuilder, Tokenizer

    code = language(lang)
    stemmer = STEMMERS.get(code or "")
    # The regular expression is 2.5 times slower.
    plain = stemmer is not None and code not in _MARKED
    tokenizer = Tokenizer.simple() if plain else Tokenizer.regex(_TOKEN)
    builder = TextAnalyzerBuilder(tokenizer).filter(Filter.remove_long(LONGEST_TERM + 1))
    builder = builder.filter(Filter.lowercase())
    return (builder.filter(Filter.stemmer(stemmer)) if stemmer else builder).build()


class Terms(threading.local):
    """Turns texts into index terms, by an analyzer for each thread.

    >>> Terms("en")("Sorting, faster!")
    ['sort', 'faster']
    """

    def __init__(self, lang: str | None) -> None:
        self._analyzer = analyzer(lang)

    def __call__(self, text: str) -> list[str]:
        """Return the terms, in order."""
        try:
            return self._analyzer.analyze(normalize(text))
        except UnicodeEncodeError:  # a lone surrogate, which only a query can have
            return self._analyzer.analyze(normalize(text.encode(errors="replace").decode()))


def normalize(text: str) -> str:
    """Compose accents (NFC).

    >>> len(normalize("e\\u0301"))
    1
    """
    return text if text.isascii() else unicodedata.normalize("NFC", text)


_CJK_RANGES = (
    "\u3005\u3007\u3021-\u3029\u3038-\u303b\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_MARK_RANGES = (
    "\u0300-\u036f\u0483-\u0487"  # Latin, Greek, Cyrillic
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc"
    "\u0900-\u0963\u0966-\u0df3\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ecd"
    "\u0f71-\u0f84\u0f8d-\u0fbc\u102b-\u103e\u1056-\u1059\u17b4-\u17d3"
)
"""Combining marks that belong inside a word; Python's ``\\w`` leaves them out."""

_WORD = re.compile(f"[{_CJK_RANGES}]|(?:(?![{_CJK_RANGES}])[^\\W_]|[{_MARK_RANGES}])+")


def words(text: str) -> list[str]:
    """Split text into lower-case words for word vectors. Each Chinese or Japanese character is a word.

    >>> words("L'été, 2 TCP/IP-based 東京")
    ['l', 'été', '2', 'tcp', 'ip', 'based', '東', '京']
    """
    return _WORD.findall(normalize(text).lower())


class _StopWords(threading.local):
    """Analyzers that remove the stop words of a language (Snowball's lists), per thread."""

    def __init__(self) -> None:
        from tantivy import Filter, TextAnalyzerBuilder, Tokenizer

        self.analyzers = {}
        for lang, name in STEMMERS.items():
            with suppress(ValueError):  # no list for the language
                stop = TextAnalyzerBuilder(Tokenizer.whitespace()).filter(Filter.stopword(name.lower()))
                self.analyzers[lang] = stop.build()


_stop_words = cache(_StopWords)


_LONGEST_STOP_WORD = 30
"""Characters; longer words of users are not looked up, and take no memory in the cache."""


def _languages(word: str) -> frozenset[str]:
    """Return the languages with this stop word, in lower case."""
    return _languages_of_stop_word(word) if len(word) <= _LONGEST_STOP_WORD else frozenset()


@lru_cache(100_000)
def _languages_of_stop_word(word: str) -> frozenset[str]:
    analyzers = _stop_words().analyzers.items()
    found = {lang for lang, one in analyzers if lang != "en" and not one.analyze(word)}
    return frozenset(found | ({"en"} if word in ENGLISH_STOP_WORDS else set()))


def guess_language(texts: Iterable[str], most: int = 20_000) -> str | None:
    """Return the language whose stop words are most frequent, or None if that is not clear.

    most: words that are read.

    >>> guess_language(["wie funktioniert die Suche und was kostet sie", "das Spiel ist nicht neu"])
    'de'
    >>> guess_language(["grey wolf", "red fox"]) is None
    True
    """
    counts, found = Counter[str](), Counter[str]()
    for text in texts:
        counts.update(words(text))
        if counts.total() >= most:
            break
    for word, count in counts.items():
        found.update(dict.fromkeys(_languages(word), count))
    best = max(sorted(found), key=lambda lang: found[lang], default=None)
    second = max((count for lang, count in found.items() if lang != best), default=0)
    return best if found[best or ""] > max(LEAST_STOP_WORDS * counts.total(), 1.2 * second) else None


def query_language(text: str, lang: str | None) -> str | None:
    """Return the language of a query, by its stop words; usually the documents' language ``lang``.

    Another language needs two more different stop words than ``lang`` in a text, English one more: names have
    foreign words. Single letters do not count.

    >>> query_language("strategy game of ancient warfare", "de"), query_language("die hard", "en")
    ('en', 'en')
    >>> query_language("was kostet die Suche und wie funktioniert sie", "en")
    'de'
    """
    code = language_or_none(lang)
    if code not in STEMMERS:
        return lang
    counts = Counter(other for word in {*words(text)} if len(word) > 1 for other in _languages(word))
    own = counts.pop(code, 0)
    reached = {other: count - (other != "en") for other, count in counts.items()}
    best = max(reached, key=lambda other: (reached[other], other == "en", other), default=code)
    return best if reached.get(best, 0) > own else lang


def without_stop_words(text: str, lang: str | None) -> str:
    """Remove the stop words of a query; the rest is unchanged.

    Words in capitals stay (``IT``), and a query of stop words only stays whole. The gain is measured by
    ``benchmarks/stop_words.py``.

    >>> without_stop_words("What is the cost of IT?", "en")
    '   cost  IT?'
    >>> without_stop_words("to be or not to be", "en"), without_stop_words("the who", "en")
    ('   not  ', 'the who')
    """
    code = language_or_none(lang)
    stop = {word for word in words(text) if code in _languages(word)} if code in STEMMERS else set()
    capitals = not text.isupper()

    def rest(match: re.Match[str]) -> str:
        word = match[0]
        name = capitals and word.isupper() and (len(word) > 1 or match.start())
        return word if name or normalize(word.lower()) not in stop else ""

    left = _WORD.sub(rest, text)
    return left if _WORD.search(left) else text


_CHOICE = re.compile(r"\[([^][|]*)\|([^][|]*)\]")


def plural(count: int, words: str) -> str:
    """Return a number and its noun, from ``[one|many]``.

    >>> plural(1, "[query retrieves|queries retrieve] nothing"), plural(2000, "pair[|s]")
    ('1 query retrieves nothing', '2,000 pairs')
    """
    return f"{count:,} {_CHOICE.sub(lambda match: match[1 if count == 1 else 2], words)}"


def join_names(names: Sequence[str], most: int = 5) -> str:
    """Return the first names and the number of others.

    >>> join_names(["q1", "q2", "q3"], 2)
    'q1, q2 and 1 more'
    """
    shown = ", ".join(name if len(name) <= 80 else f"{name[:79]}…" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
