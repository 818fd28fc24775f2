"""Languages, analyzers, words, and text for messages.

Documents keep their stop words, and words keep their accents.
"""

from __future__ import annotations

import html
import re
import threading
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from html.entities import html5
from typing import TYPE_CHECKING

from rerank.common.errors import UsageError

if TYPE_CHECKING:
    from tantivy import TextAnalyzer, TextAnalyzerBuilder

ANALYZER_VERSION = 2
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

_LONG_CODES = {
    "ara": "ar",
    "dan": "da",
    "deu": "de",
    "ger": "de",
    "ell": "el",
    "gre": "el",
    "eng": "en",
    "spa": "es",
    "fin": "fi",
    "fra": "fr",
    "fre": "fr",
    "hun": "hu",
    "ita": "it",
    "nob": "nb",
    "nld": "nl",
    "dut": "nl",
    "nno": "nn",
    "nor": "no",
    "por": "pt",
    "ron": "ro",
    "rum": "ro",
    "rus": "ru",
    "swe": "sv",
    "tam": "ta",
    "tur": "tr",
    "zho": "zh",
    "chi": "zh",
    "jpn": "ja",
    "kor": "ko",
}
"""Three-letter code (ISO 639-2 and 639-3, as in library catalogs) -> two-letter code."""

LONGEST_TERM = 64
"""Longer words are cut to so many characters, in documents and queries."""

_MARKED = frozenset({"ar", "ta"})
"""Languages with combining marks in words; the fast tokenizer would split there."""

_CJK_SCRIPTS = r"\p{Han}\p{Hiragana}\p{Katakana}"
_MAX_STEMS = 50_000  # words whose stems a thread keeps, about 6 MB
_TOKEN = rf"[{_CJK_SCRIPTS}]|[\w--[_{_CJK_SCRIPTS}]]+"
"""Letters, marks and digits as one token, each CJK character as its own (Rust regex syntax)."""


def language(code: str | None) -> str | None:
    """Return the two-letter code of a language, or None for None.

    code: of a language, or of a variant of it. It may have three letters. If a language has only a code of
        three letters, this one is returned.

    Raises UsageError for a text that cannot be a code.

    >>> language("en-GB"), language("eng"), language("haw")
    ('en', 'en', 'haw')
    """
    if code is None:
        return None
    primary = code.replace("_", "-").split("-")[0].lower()
    if not re.fullmatch(r"[a-z]{2,3}", primary):
        raise UsageError(f"{code!r} is not a language code; give two letters, for example en, it or de")
    return _LONG_CODES.get(primary, primary)


def language_or_none(code: str | None) -> str | None:
    """Return the two-letter code of a language, or None for a text that cannot be a code.

    >>> language_or_none("en-GB"), language_or_none("English")
    ('en', None)
    """
    try:
        return language(code)
    except UsageError:
        return None


def analyzer(lang: str | None) -> TextAnalyzer:
    """Return the analyzer that splits a text into words, lower-cases and stems them.

    lang: code of a language with a stemmer. For other languages words are not stemmed, and each Chinese or
        Japanese character is a term.

    >>> analyzer("en").analyze("Sorting, faster!")
    ['sort', 'faster']
    """
    from tantivy import Filter

    builder = _words(lang)
    stemmer = STEMMERS.get(language(lang) or "")
    if stemmer is not None:
        builder = builder.filter(Filter.stemmer(stemmer))
    return builder.build()


def _words(lang: str | None) -> TextAnalyzerBuilder:
    """Return the first steps of the analyzer, which give lower-case words."""
    from tantivy import Filter, TextAnalyzerBuilder, Tokenizer

    code = language(lang)
    tokenizer = Tokenizer.simple()  # faster than a pattern
    if code not in STEMMERS or code in _MARKED:
        tokenizer = Tokenizer.regex(_TOKEN)
    return TextAnalyzerBuilder(tokenizer).filter(Filter.lowercase())


class _Stems(dict[str, str]):
    """Lower-case word -> its stem. The first words are kept: frequent ones come early."""

    def __init__(self, stemmer: str) -> None:
        from tantivy import Filter, TextAnalyzerBuilder, Tokenizer

        builder = TextAnalyzerBuilder(Tokenizer.raw()).filter(Filter.stemmer(stemmer))
        self._analyzer = builder.build()

    def __missing__(self, word: str) -> str:
        (stem,) = self._analyzer.analyze(word)
        if len(self) < _MAX_STEMS:
            self[word] = stem
        return stem


class Terms(threading.local):
    """Turns the texts of a language into index terms. Each thread has its own analyzer.

    The terms are those of :func:`analyzer`, in three quarters of the time, because each word is stemmed once.

    >>> Terms("en")("Sorting, faster!")
    ['sort', 'faster']
    """

    def __init__(self, lang: str | None) -> None:
        self._lang = language(lang)
        self._analyzer = _words(lang).build()
        stemmer = STEMMERS.get(self._lang or "")
        self._stems = _Stems(stemmer) if stemmer is not None else None

    def __call__(self, text: str) -> list[str]:
        """Return the terms of a text, in their order; a term that occurs twice comes twice."""
        try:
            words = self._analyzer.analyze(self.searchable(text))
        except UnicodeEncodeError:  # a lone surrogate, which only a query can have
            words = self._analyzer.analyze(self.searchable(text.encode(errors="replace").decode()))
        if self._stems is None:
            return words
        return list(map(self._stems.__getitem__, words))

    def searchable(self, text: str) -> str:
        """Return the text that the analyzer reads instead of a text, as :func:`searchable` makes it.

        In Turkish, the lower case of ``I`` is ``ı``.
        """
        text = searchable(text, stemmed=self._lang in STEMMERS)
        if self._lang == "tr":
            return text.replace("I", "ı")
        return text


# -- normalization ---------------------------------------------------------------------------------------
# The char filters of the index templates have the same rules. A test compares all characters.

IGNORABLE = (
    "\u00ad\u034f\u061c\u0640\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8"
)
"""Invisible characters (Unicode: Default_Ignorable_Code_Point), and the tatweel, which stretches words."""

COMPATIBLE = (
    "\u00b2\u00b3\u00b5\u00b9\u0130\u0132\u0133\u013f\u0140\u0149\u017f\u01c4-\u01cc\u01f1-\u01f3"  # µ, ĳ, ſ
    "\u03d0-\u03d2\u03d5\u03d6\u03f0-\u03f2\u03f4\u03f5\u03f9\u0587\u0675-\u0678\u0e33\u0eb3\u0edc\u0edd"
    "\u1e9a\u2070-\u209c"  # superscripts and subscripts
    "\u2102\u210a-\u2113\u2115\u2119-\u211d\u2124\u2128\u212c\u212d\u212f-\u2131\u2133-\u2139"
    "\u213c-\u213f\u2145-\u2149"  # letters of formulas
    "\u2160-\u217f\u2e9f\u2ef3\u2f00-\u2fd5\u3300-\u33ff"  # Roman numbers, radicals, units
    "\ufb00-\ufb06\ufb13-\ufb17\ufb1d-\ufb4f\ufb50-\ufdfb"  # ligatures and other forms of letters
    "\ufe76-\ufefc\uff01-\uffdc"  # full and half width
    "\U0001d400-\U0001d7ff\U0001ee00-\U0001eebb"
)
"""Other forms of letters and digits. Their compatible characters (NFKC) replace them."""

SPACELESS = (
    "\u0e01-\u0e30\u0e32\u0e33\u0e40-\u0e46\u0e81-\u0eb0\u0eb2\u0eb3\u0ebd-\u0ec6\u0edc-\u0edf"  # Thai, Lao
    "\u1000-\u102a\u103f\u1050-\u1055\u105a-\u105d\u1061\u1065\u1066\u106e-\u1070\u1075-\u1081\u108e"
    "\u1780-\u17b3\u17d7\u17dc"  # Burmese, Khmer
    "\u1950-\u196d\u1970-\u1974\u1980-\u19ab\u19b0-\u19c9\u1a20-\u1a54\u1aa7\u1b05-\u1b33\u1b45-\u1b4c"
    "\ua000-\ua48c\ua984-\ua9b2\ua9cf\ua9e0-\ua9e4\ua9e6-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa76\uaa7a"
    "\uaa7e-\uaaaf\uaab1\uaab5\uaab6\uaab9-\uaabd\uaac0\uaac2\uaadb-\uaadd"
)
"""Letters of scripts without spaces between words, except Chinese and Japanese."""

SPACELESS_MARKS = (
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ecd\u102b-\u103e\u1056-\u1059\u105e-\u1060"
    "\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u17b6-\u17d3\u17dd"
    "\u1a55-\u1a5e\u1a60-\u1a7c\u1a7f\u1b00-\u1b04\u1b34-\u1b44\u1b6b-\u1b73\ua980-\ua983\ua9b3-\ua9c0\ua9e5"
    "\uaa7b-\uaa7d\uaab0\uaab2-\uaab4\uaab7\uaab8\uaabe\uaabf\uaac1"
)
"""Marks on letters of SPACELESS."""


def pairs_pattern(letters: str) -> str:
    """Return the pattern that splits a text without spaces into overlapping pairs of letters.

    Its replacement by the groups 1 and 2 and a space makes ``AB BC CD`` of ``ABCD``. It also separates these
    letters from others. The marks of a letter stay with it. Python and Java read the pattern in the same way.

    letters: characters and ranges of characters, as in a character class.
    """
    letter = f"[{letters}][{SPACELESS_MARKS}]*"
    inside = f"[{letters}{SPACELESS_MARKS}]"
    outside = f"[^\\s{letters}{SPACELESS_MARKS}]"
    return f"({letter})(?=({letter})[{letters}])|(?<={inside})(?={outside})|(?<={outside})(?=[{letters}])"


CJK = (
    "\u3005\u3007\u3021-\u3029\u3038-\u303b\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
"""Chinese and Japanese characters."""

_MARK_RANGES = (
    "\u0300-\u036f\u0483-\u0487"  # Latin, Greek, Cyrillic
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc"
    "\u0900-\u0963\u0966-\u0df3\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ecd"
    "\u0f71-\u0f84\u0f8d-\u0fbc\u102b-\u103e\u1056-\u1059\u17b4-\u17d3"
)
"""Combining marks that belong inside a word; Python's ``\\w`` leaves them out."""

_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
_RARE = re.compile(
    "[^\\x00-\\xac\\xae-\\xb1\\xb4\\xb6-\\xb8\\xba-\\u012f\\u0141-\\u0148\\u014a-\\u017e\\u0250-\\u034e\\u0370-\\u03cf"
    "\\u0400-\\u0560\\u2010-\\u2027\\u2030-\\u205e\\u2190-\\u22ff]"
)
"""Characters that may need more than composition. One search for them is faster than one for each step."""
_FOLDED = re.compile(f"[{IGNORABLE}{COMPATIBLE}]")
_IGNORABLE = re.compile(f"[{IGNORABLE}]")
_SPACELESS = re.compile(f"[{SPACELESS}]")
_PAIRS = re.compile(pairs_pattern(SPACELESS))
_CJK = re.compile(f"[{CJK}]")
_CJK_PAIRS = re.compile(pairs_pattern(SPACELESS + CJK))
_LONG = re.compile(f"((?:[^\\W_]|[{_MARK_RANGES}]){{{LONGEST_TERM}}})(?:[^\\W_]|[{_MARK_RANGES}])+")


def compose(text: str) -> str:
    """Return the text with one character for a letter and its accents (NFC). It looks the same.

    >>> len(compose("e\\u0301"))
    1
    """
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", text)


def normalize(text: str) -> str:
    """Return the form of a text in which texts, categories and filters are compared.

    1. HTML entities become characters: ``&beta;`` and ``&#946;``. Unknown names stay.
    2. Accents are composed (NFC).
    3. Invisible characters are removed, such as soft hyphens and zero-width spaces; also the tatweel.
    4. Other forms of letters and digits become the usual ones (NFKC): full and half width, ligatures, raised
       and lowered digits, letters of formulas, Roman numbers. Other compatible characters stay.

    Case, accents, punctuation and similar letters of other alphabets stay.

    >>> normalize("\\ufb01nd CO\\u2082 in \\uff21\\uff22 soft\\u00adware &amp; &beta;")
    'find CO2 in AB software & β'
    """
    if "&" in text:
        text = _ENTITY.sub(_character, text)
    if text.isascii():
        return text
    text = unicodedata.normalize("NFC", text)
    if _RARE.search(text) is None or _FOLDED.search(text) is None:
        return text
    text = _FOLDED.sub(_fold, text)
    return unicodedata.normalize("NFC", text)


def searchable(text: str, *, stemmed: bool) -> str:
    """Return the text that is split into index terms: normalized, and made of words.

    Texts without spaces (Thai, Lao, Khmer, Burmese and others) become overlapping pairs of letters. Words
    above LONGEST_TERM are cut. A final sigma is a sigma: capitals have only one.

    stemmed: the language has a stemmer. Then Chinese and Japanese texts also become pairs, because its
        analyzer does not split them.

    >>> searchable("สุขภาพ", stemmed=False), searchable("東京タワー", stemmed=True)
    ('สุข ขภ ภา าพ', '東京 京タ タワ ワー')
    >>> searchable("x" * 70, stemmed=True) == "x" * 64
    True
    """
    text = normalize(text).replace("ς", "σ")
    if not text.isascii() and _RARE.search(text):
        text = _in_pairs(text, stemmed=stemmed)
    if _may_have_long_words(text):
        text = _LONG.sub(r"\1", text)
    return text


def _in_pairs(text: str, *, stemmed: bool) -> str:
    """Write texts without spaces, and with a stemmer also Chinese and Japanese ones, as pairs of letters."""
    if stemmed and _CJK.search(text):
        return _CJK_PAIRS.sub(r"\1\2 ", text)
    return _spaced(text)


def _character(entity: re.Match[str]) -> str:
    """Return the character of an HTML entity, or the entity itself if its name is unknown."""
    text = entity[0]
    if text[1] == "#":
        return html.unescape(text)
    return html5.get(text[1:], text)


@lru_cache(4096)
def _compatible(character: str) -> str:
    return unicodedata.normalize("NFKC", character)


def _fold(match: re.Match[str]) -> str:
    character = match[0]
    if character == "İ":  # its usual lower case has a dot as a separate mark
        return "i"
    return _IGNORABLE.sub("", _compatible(character))


def _may_have_long_words(text: str) -> bool:
    """Look for a space in each LONGEST_TERM characters, which is faster than a regular expression."""
    start = 0
    while len(text) - start > LONGEST_TERM:
        space = text.rfind(" ", start, start + LONGEST_TERM + 1)
        if space < 0:
            return True
        start = space + 1
    return False


def _spaced(text: str) -> str:
    """Write texts without spaces as pairs of letters."""
    if _SPACELESS.search(text):
        return _PAIRS.sub(r"\1\2 ", text)
    return text


WORD = re.compile(f"[{CJK}]|(?:(?![{CJK}])[^\\W_]|[{_MARK_RANGES}])+")
"""A word as :func:`words` splits texts."""


def words(text: str) -> list[str]:
    """Split text into lower-case words for word vectors. Each Chinese or Japanese character is a word.

    >>> words("L'été, 2 TCP/IP-based 東京")
    ['l', 'été', '2', 'tcp', 'ip', 'based', '東', '京']
    """
    return WORD.findall(_spaced(normalize(text)).lower())


def query_key(text: str) -> str:
    """Return the form in which the texts of queries are compared: composed, in lower case, single spaces.

    >>> query_key(" Grey  WOLF ")
    'grey wolf'
    """
    return " ".join(compose(text).lower().split())


def plural_of(noun: str) -> str:
    """Return the plural of an English noun, by the regular rules.

    >>> plural_of("document"), plural_of("judged query"), plural_of("search")
    ('documents', 'judged queries', 'searches')
    """
    if noun.endswith("y"):
        return f"{noun[:-1]}ies"
    if noun.endswith(("tch", "rch", "s", "x")):
        return f"{noun}es"
    return f"{noun}s"


def count_of(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural except for 1.

    >>> count_of(1, "query"), count_of(2000, "query")
    ('1 query', '2,000 queries')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {plural_of(noun)}"


def join_names(names: Sequence[str], max_names: int = 5) -> str:
    """Return the first ``max_names`` names, and the number of the others. Long names are cut.

    >>> join_names(["q1", "q2", "q3"], 2)
    'q1, q2 and 1 more'
    """
    shown = ", ".join(map(_cut_name, names[:max_names]))
    if len(names) <= max_names:
        return shown
    return f"{shown} and {len(names) - max_names} more"


def _cut_name(name: str) -> str:
    if len(name) <= 80:
        return name
    return f"{name[:79]}…"
