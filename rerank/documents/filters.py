"""Filters on document fields.

One index field has all *terms*: field, kind and value. Numbers and dates sort by value.
"""

from __future__ import annotations

import calendar
import math
import re
import struct
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import compress
from typing import NamedTuple

from rerank.common.errors import UsageError
from rerank.common.values import items_of, listed
from rerank.documents.records import Document
from rerank.documents.text import compose, normalize

FIELD = "filters"
"""The index field with the terms."""

LONGEST = 256
"""Maximum characters of a value and of a field name; longer values cannot be filtered by."""

# Not hexadecimal digits, which the names have.
WORD = "k"
NUMBER = "n"
TIME = "t"
YEAR = "w"
TRUTH = "y"
KINDS = {WORD: "words", NUMBER: "numbers", TIME: "dates", YEAR: "years", TRUTH: "true or false"}

SIGNS = ("=", "<", "<=", ">", ">=")
_OTHER_SIGNS = {"==": "=", "===": "=", "=>": ">=", "=<": "<=", "≥": ">=", "≤": "<="}
_SIGN = re.compile(r"([<>=!≤≥≠]+)")
_YEAR = re.compile(r"\d{4}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_TIME = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[Tt ](\d\d):(\d\d)(?::(\d\d)([.,]\d+)?)?"
    r"(?: ?(Z|z|UTC|GMT|[+-]\d\d(?::?\d\d)?))?)?)?)?"
)
_LOWEST = (1, 1, 1, 0, 0, 0)  # parts of a date
_DAY = 86_400.0
_SECONDS = {3: _DAY, 5: 60.0, 6: 1.0, 7: 0.001}  # of a date with so many parts
_AFTER = "!"  # sorts after a number, and before a longer number with the same start
_HOW = "write it as year>=2020, tags=a or published<2024-06"


class Span(NamedTuple):
    """Terms from ``low``, below ``high``."""

    low: str
    high: str


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on a field.

    op: one of SIGNS. value: text. Field names, words and dates are compared in their normalized form.

    >>> Filter.parse("year >= 2020")
    Filter(field='year', op='>=', value='2020')
    """

    field: str
    op: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Parse a condition such as ``year >= 2020``.

        Raises UsageError for a missing field, sign or value, and for a sign that is not one of SIGNS.
        """
        parts = list(filter(None, map(str.strip, _SIGN.split(text, maxsplit=1))))
        if len(parts) != 3:
            raise UsageError(f"filter {text!r}: no field, sign and value; {_HOW}")
        return cls(*parts)

    def __post_init__(self) -> None:
        if self.op not in SIGNS:
            raise UsageError(f"filter {str(self)!r}: {self.op!r} is not a sign; {_remedy(self.op)}")
        if not self.kinds():
            raise UsageError(
                f"filter {str(self)!r}: {self.value!r} is neither a number nor a date; use =, or {_HOW}"
            )

    def __str__(self) -> str:
        return f"{self.field}{self.op}{self.value}"

    def kinds(self) -> str:
        """Return the kinds of values that can be compared with this one."""
        is_date = period(self.value) is not None
        comparable = {
            WORD: self.op == "=",
            NUMBER: number(self.value) is not None,
            TIME: is_date,
            YEAR: is_date,
            TRUTH: self.op == "=" and self.value in ("true", "false"),
        }
        return "".join(compress(comparable, comparable.values()))

    def terms(self) -> list[str | Span]:
        """Return the terms, and the spans of terms, of the values that meet the condition."""
        terms: list[str | Span] = []
        for kind in self.kinds():
            if kind in (WORD, TRUTH):
                terms.append(_begin(self.field, kind) + normalize(self.value))
            else:
                terms.append(self._span(kind))
        return terms

    def _span(self, kind: str) -> Span:
        """Return the span of numbers, dates or years that match."""
        begin = _begin(self.field, kind)
        if kind == NUMBER:
            value = exact(self.value)
            assert value is not None
            low = begin + _ordered(value)
            high = low + _AFTER
        else:
            moments = period(self.value)
            assert moments is not None
            low = begin + _ordered(moments[0])
            high = begin + _ordered(moments[1])
        all_values = every(self.field, kind)
        spans = {
            "=": Span(low, high),
            ">=": Span(low, all_values.high),
            ">": Span(high, all_values.high),
            "<": Span(all_values.low, low),
            "<=": Span(all_values.low, high),
        }
        return spans[self.op]

    def check(self, kinds: str) -> None:
        """Raise UsageError if the value cannot be compared with the values that the field has.

        kinds: of the values of the field in all documents.

        Strings of four digits are years if all are, or if others are dates. Otherwise they may be codes.
        """
        if not kinds:
            raise UsageError(
                f"filter {self}: no document has a field {self.field!r} to filter by (capital and small"
                " letters differ); use categories, lang or a field with words, numbers, dates or truth values"
            )
        if not self._can_compare(set(kinds)):
            values = " and ".join(KINDS[kind] for kind in kinds)
            wrong = f"{self.value!r} is none of them" if self.op == "=" else f"{self.op} compares others"
            raise UsageError(f"filter {self}: field {self.field!r} holds {values}, and {wrong}; correct it")

    def _can_compare(self, kinds: Set[str]) -> bool:
        comparable = kinds & set(self.kinds())
        if self.op != "=" and comparable == {YEAR}:
            return WORD not in kinds  # with words, the strings of four digits may be codes
        return bool(comparable)


def filters_of(texts: str | Sequence[str | Filter]) -> tuple[Filter, ...]:
    """Parse filters without duplicates. Raises UsageError, also for other values.

    >>> [str(condition) for condition in filters_of(["year>=2020", "tags = a", "tags=a"])]
    ['year>=2020', 'tags=a']
    """
    return tuple(dict.fromkeys(map(_as_filter, items_of(texts))))


def _as_filter(value: object) -> Filter:
    if isinstance(value, Filter):
        return value
    if not isinstance(value, str):
        raise UsageError(f"filter {value!r}: not a text; {_HOW}")
    return Filter.parse(value)


def every(field: str, kind: str) -> Span:
    """Return the span of all terms of a field whose values are of one kind."""
    begin = _begin(field, kind)
    return Span(begin, begin[:-1] + chr(ord(kind) + 1))


def terms_of(document: Document) -> list[str]:
    """Return the terms of all fields.

    >>> terms_of(Document("1", categories=("a b",), extra={"new": True, "nested": {"not": "kept"}}))
    ['63617465676f72696573ka b', '6e6577ytrue']
    """
    fields = {**document.extra, "categories": document.categories, "lang": document.lang}
    terms: dict[str | None, None] = {}
    for name in sorted(fields):
        term_of = partial(_term_of_value, name)
        terms |= dict.fromkeys(map(term_of, listed(fields[name])))
    return list(filter(None, terms))


def _term_of_value(field: str, value: object) -> str | None:
    """Return the term of one value, or None if it cannot be filtered by."""
    if len(field) > LONGEST:
        return None
    if isinstance(value, bool):
        return f"{_begin(field, TRUTH)}{str(value).lower()}"
    if isinstance(value, str) and 0 < len(value) <= LONGEST:
        return _term_of_text(field, normalize(value))
    if isinstance(value, (int, float)) and math.isfinite(_float(value)):
        return _begin(field, NUMBER) + _ordered(value)
    return None


def _term_of_text(field: str, text: str) -> str:
    moments = period(text)
    if moments is None:
        return _begin(field, WORD) + text
    start = _ordered(moments[0])
    if _YEAR.fullmatch(text):
        return _begin(field, YEAR) + start
    return _begin(field, TIME) + start


def _remedy(sign: str) -> str:
    if sign in _OTHER_SIGNS:
        return f"write {_OTHER_SIGNS[sign]}"
    if sign in ("!=", "≠", "<>", "=!", "!=="):
        return "filters cannot exclude a value; give the values to keep with ="
    return f"use one of {' '.join(SIGNS)}, with a space before a value that starts with such a character"


def _begin(field: str, kind: str) -> str:
    return compose(field).encode(errors="replace").hex() + kind


def _ordered(value: float) -> str:
    """16 digits that sort like the numbers; integers between doubles get a suffix.

    >>> _ordered(2**53), _ordered(2**53 + 1), _ordered(2**53 + 2)
    ('c340000000000000', 'c340000000000000+0011', 'c340000000000001')
    """
    double = float(value)
    if double > value:
        double = math.nextafter(double, -math.inf)
    (bits,) = struct.unpack(">Q", struct.pack(">d", double + 0.0))
    is_negative = bits >> 63
    if is_negative:  # all bits are inverted, so that larger numbers sort later
        bits ^= 2**64 - 1
    else:
        bits |= 2**63
    term = f"{bits:016x}"
    if double == value:
        return term
    further = f"{int(value) - int(double):x}"
    return f"{term}+{len(further):03x}{further}"


def exact(text: str) -> float | None:
    """Return the number in a text, exact for integers, or None."""
    if _INTEGER.fullmatch(text) and math.isfinite(float(text)):
        return int(text)
    return number(text)


def number(text: str) -> float | None:
    """Return the number that a text is, as a decimal with or without an exponent; None for other texts."""
    if _NUMBER.fullmatch(text):
        return _float(text)
    return None


def _float(value: str | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def period(text: str) -> tuple[float, float] | None:
    """Return begin and end of a date in seconds since 1970, or None. Default zone: UTC.

    >>> period("1970-01-02"), period("1970-01-01T01:00:00+01:00")
    ((86400.0, 172800.0), (0.0, 1.0))
    """
    match = _TIME.fullmatch(normalize(text))
    if match is None:
        return None
    *texts, fraction, zone = match.groups("")
    numbers = list(map(int, filter(None, texts)))
    year, month, day, hour, minute, second = [*numbers, *_LOWEST[len(numbers) :]]
    beyond = 0.0  # end of a day, leap second
    if (hour, minute, second) == (24, 0, 0):
        hour = 0
        beyond = _DAY
    elif second == 60:
        second = 59
        beyond = 1.0
    try:
        moment = datetime(year, month, day, hour, minute, second, 0, _zone(zone))
    except ValueError:  # the 13th month, the year 0
        return None
    begin = moment.timestamp() + beyond + float(f"0{fraction}".replace(",", "."))
    precision = len(numbers) + bool(fraction)
    return begin, begin + _seconds_of_period(precision, year, month)


def _seconds_of_period(precision: int, year: int, month: int) -> float:
    """Return the length of a year, month, day, minute, second or millisecond in seconds.

    precision: number of parts of the date, from 1 (only the year) to 7 (with a fraction of a second).
    """
    if precision == 1:
        return _DAY * (365 + calendar.isleap(year))
    if precision == 2:
        return _DAY * calendar.monthrange(year, month)[1]
    return _SECONDS[precision]


def _zone(text: str) -> timezone:
    """Return the zone of a text such as ``+0530`` or ``-05:00``. Others are UTC."""
    sign = text[:1]
    if sign not in ("+", "-"):
        return timezone.utc
    digits = text[1:].replace(":", "").ljust(4, "0")
    return timezone(timedelta(hours=int(sign + digits[:2]), minutes=int(sign + digits[2:])))
