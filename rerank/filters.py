"""Filters on document fields.

One index field has all *terms*: field, kind and value. Numbers and dates sort by value.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from rerank.errors import UsageError
from rerank.records import Document

FIELD = "filters"
"""The index field with the terms."""

LONGEST = 256
"""Maximum characters of a value and of a field name; longer values cannot be filtered by."""

WORD, NUMBER, TIME, TRUTH = "k", "n", "t", "y"  # not hexadecimal digits, which the names have
KINDS = {WORD: "words", NUMBER: "numbers", TIME: "dates", TRUTH: "true or false"}

_FILTER = re.compile(r"([^<>=]*)(>=|<=|=|>|<)(.*)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_TIME = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?)?)?"
)
_LOWEST = (1, 1, 1, 0, 0, 0)  # parts of a date
_LENGTHS = {3: 86_400_000, 5: 60_000, 6: 1000}  # milliseconds of a date with so many parts
_AFTER = "!"  # sorts after a number, and before a longer number with the same start
_HOW = "write it as year>=2020, tags=a or published<2024-06"


class Span(NamedTuple):
    """Terms from ``low``, below ``high``."""

    low: str
    high: str


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on a field.

    op: one of = < <= > >=. value: text.

    >>> Filter.parse("year >= 2020")
    Filter(field='year', op='>=', value='2020')
    """

    field: str
    op: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Parse, for example, ``FIELD>=VALUE``. Raises UsageError."""
        found = _FILTER.fullmatch(text)
        parts = [part.strip() for part in found.groups()] if found else [""]
        if not all(parts):
            raise UsageError(f"filter {text!r}: no field, sign and value; {_HOW}")
        one = cls(*parts)
        if one.op != "=" and number(one.value) is None and period(one.value) is None:
            raise UsageError(
                f"filter {text!r}: {one.value!r} is neither a number nor a date; use =, or {_HOW}"
            )
        return one

    def __str__(self) -> str:
        return f"{self.field}{self.op}{self.value}"

    def kinds(self) -> str:
        """Kinds of comparable values."""
        fits = {
            WORD: self.op == "=",
            NUMBER: number(self.value) is not None,
            TIME: period(self.value) is not None,
            TRUTH: self.op == "=" and self.value in ("true", "false"),
        }
        return "".join(kind for kind, can in fits.items() if can)

    def terms(self) -> list[str | Span]:
        """Return terms and spans that match."""
        found: list[str | Span] = []
        for kind in self.kinds():
            begin = _begin(self.field, kind)
            if kind in (WORD, TRUTH):
                found.append(begin + self.value)
                continue
            if kind == TIME and (when := period(self.value)):
                low, high = (begin + _ordered(moment) for moment in when)
            elif (value := exact(self.value)) is not None:
                low = begin + _ordered(value)
                high = low + _AFTER
            all_of_them = every(self.field, kind)
            found.append(
                {
                    "=": Span(low, high),
                    ">=": Span(low, all_of_them.high),
                    ">": Span(high, all_of_them.high),
                    "<": Span(all_of_them.low, low),
                    "<=": Span(all_of_them.low, high),
                }[self.op]
            )
        return found

    def check(self, kinds: str) -> None:
        """Raise UsageError for incomparable kinds."""
        if not kinds:
            raise UsageError(
                f"filter {self}: no document has a field {self.field!r} to filter by; use categories, lang or"
                " a field with words, numbers, dates or truth values"
            )
        if not set(kinds) & set(self.kinds()):
            values = " and ".join(KINDS[kind] for kind in kinds)
            wrong = f"{self.value!r} is none of them" if self.op == "=" else f"{self.op} compares others"
            raise UsageError(f"filter {self}: field {self.field!r} holds {values}, and {wrong}; correct it")


def filters_of(texts: str | Sequence[str | Filter]) -> tuple[Filter, ...]:
    """Parse filters without duplicates. Raises UsageError.

    >>> [str(one) for one in filters_of(["year>=2020", "tags = a", "tags=a"])]
    ['year>=2020', 'tags=a']
    """
    each = [texts] if isinstance(texts, str) else texts
    return tuple(dict.fromkeys(Filter.parse(one) if isinstance(one, str) else one for one in each))


def every(field: str, kind: str) -> Span:
    """Return the span of a field and kind."""
    begin = _begin(field, kind)
    return Span(begin, begin[:-1] + chr(ord(kind) + 1))


def terms_of(document: Document) -> list[str]:
    """Return the terms of all fields.

    >>> terms_of(Document("1", categories=("a b",), extra={"new": True, "nested": {"not": "kept"}}))
    ['63617465676f72696573ka b', '6e6577ytrue']
    """
    fields = {**document.extra, "categories": document.categories, "lang": document.lang}
    found = [term for name in sorted(fields) for term in _terms(name, fields[name])]
    return list(dict.fromkeys(found))


def _terms(field: str, value: object) -> Iterator[str]:
    if len(field) > LONGEST:
        return
    for one in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(one, bool):
            yield f"{_begin(field, TRUTH)}{str(one).lower()}"
        elif isinstance(one, (int, float)):
            if math.isfinite(_float(one)):
                yield _begin(field, NUMBER) + _ordered(one)
        elif isinstance(one, str) and one and len(one) <= LONGEST:
            when = period(one) if "-" in one else None  # four digits are a word
            yield _begin(field, TIME) + _ordered(when[0]) if when else _begin(field, WORD) + one


def _begin(field: str, kind: str) -> str:
    return field.encode(errors="replace").hex() + kind


def _ordered(value: float) -> str:
    """16 digits that sort like the numbers; integers between doubles get a suffix.

    >>> _ordered(2**53), _ordered(2**53 + 1), _ordered(2**53 + 2)
    ('c340000000000000', 'c340000000000000+0011', 'c340000000000001')
    """
    double = float(value)
    if double > value:
        double = math.nextafter(double, -math.inf)
    (bits,) = struct.unpack(">Q", struct.pack(">d", double + 0.0))
    term = f"{bits ^ (2**64 - 1) if bits >> 63 else bits | 2**63:016x}"
    if double == value:
        return term
    further = f"{int(value) - int(double):x}"
    return f"{term}+{len(further):03x}{further}"


def exact(text: str) -> float | None:
    """Return the number in a text, exact for integers, or None."""
    value = number(text)
    return int(text) if value is not None and math.isfinite(value) and _INTEGER.fullmatch(text) else value


def number(text: str) -> float | None:
    """Return the number in a text, or None."""
    return _float(text) if _NUMBER.fullmatch(text) else None


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
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    *parts, fraction, zone = found.groups()
    count = sum(part is not None for part in parts)
    year, month, day, hour, minute, second = (int(part or lowest) for part, lowest in zip(parts, _LOWEST))
    microsecond = round(float(fraction or 0) * 1e6) % 1_000_000
    try:
        begin = datetime(year, month, day, hour, minute, second, microsecond, _zone(zone))
        if count < 3:  # a year or a month
            end = begin.replace(year=year + 1) if count == 1 else (begin + timedelta(days=31)).replace(day=1)
        else:
            end = begin + timedelta(milliseconds=1 if fraction else _LENGTHS[count])
        return begin.timestamp(), end.timestamp()
    except (ValueError, OverflowError):  # the 13th month, the year 0
        return None


def _zone(text: str | None) -> timezone:
    if text in (None, "Z"):
        return timezone.utc
    sign = -1 if text[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(text[1:3]), minutes=int(text[-2:])))
