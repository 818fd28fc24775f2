"""The words of the query languages of ``query_string`` and ``simple_query_string``.

Both parsers follow the parsers of Lucene: same tokens, same whitespace, same scope of ``NOT`` and ``-``. They
read any text in linear time, also one that Lucene refuses, and never recurse.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_SPACE = r" \t\n\r\u3000"
_TERM_END = rf"[{_SPACE}!():^\[\]\"{{}}~/]|\Z"
_TERM = rf"(?:[^{_SPACE}+\-!():^\[\]\"{{}}~\\/]|\\.)(?:[^{_SPACE}!():^\[\]\"{{}}~\\/]|\\.)*"
_TOKEN = re.compile(
    rf"""
    (?P<space>[{_SPACE}]+)
    | (?P<bare>[-+!](?=[{_SPACE}]))                  # an operator before a space is a word without letters
    | (?P<not>NOT(?={_TERM_END})|[-!])
    | (?P<operator>(?:AND|OR|&&|\|\|)(?={_TERM_END})|\+)
    | (?P<phrase>"(?:[^"\\]|\\.)*"?)
    | (?P<range>[\[{{](?:"(?:[^"\\]|\\.)*"|[^\]}}"])*[\]}}]?)
    | (?P<regex>(?<![^{_SPACE}(:+\-!])/(?:[^/\\]|\\.)*/(?=[{_SPACE})~^]|\Z))
    | (?P<open>\() | (?P<close>\)) | (?P<colon>:)
    | (?P<suffix>[~^][\d.]*)                         # a distance or a boost
    | (?P<field>{_TERM}(?=[{_SPACE}]*:))
    | (?P<term>{_TERM})
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_CLAUSES = frozenset(("open", "close", "term", "phrase", "range", "regex", "bare"))
"""Tokens that begin or end a clause, so a field or ``NOT`` holds only up to the next one."""

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_WILDCARD_OR_ESCAPED = re.compile(r"\\(.)|[*?]", re.DOTALL)
_EXISTS = "_exists_"
"""The name of a field whose value is the name of another field."""


class FieldText(NamedTuple):
    """Words, and the field that the query names for them, or None."""

    field: str | None
    text: str


class _Scope(NamedTuple):
    """The field of clauses, and whether they are excluded: of a group, or of the next clause only."""

    field: str | None = None
    excluded: bool = False

    def inside(self, group: _Scope) -> _Scope:
        """Return the scope of a clause in a group. The field that is next to the clause comes first."""
        return _Scope(self.field or group.field, self.excluded or group.excluded)


def parse_query_string(text: str) -> list[FieldText]:
    """Return the words of a ``query_string`` query that are not excluded, with their fields.

    Words below ``NOT``, ``-`` or ``!`` are left out, at any depth; also ranges, regular expressions and
    operators. Wildcards separate words.

    >>> parse_query_string("wolf NOT (fox OR (dog AND cat)) title:pup")
    [FieldText(field=None, text='wolf'), FieldText(field='title', text='pup')]
    """
    reader = _QueryStringReader()
    for match in _TOKEN.finditer(text):
        reader.read(str(match.lastgroup), match[0])
    return reader.words


class _QueryStringReader:
    """Reads the tokens of a ``query_string`` query from left to right.

    words:       the words that are not excluded, with their fields.
    groups:      the scopes of the groups around the next clause, the outermost first.
    next_clause: the field and the exclusion that stand directly before the next clause.
    """

    def __init__(self) -> None:
        self.words: list[FieldText] = []
        self.groups = [_Scope()]
        self.next_clause = _Scope()

    def read(self, kind: str, token: str) -> None:
        """Read a token. kind: its group in ``_TOKEN``; other kinds than these have no effect."""
        if kind == "not":
            self.next_clause = self.next_clause._replace(excluded=True)
        elif kind == "field":
            self.next_clause = self.next_clause._replace(field=_unescape_name(token))
        elif kind in _CLAUSES:
            clause = self.next_clause.inside(self.groups[-1])
            self.next_clause = _Scope()
            self._read_clause(kind, token, clause)

    def _read_clause(self, kind: str, token: str, clause: _Scope) -> None:
        if kind == "open":
            self.groups.append(clause)
        elif kind == "close":
            self._leave_group()
        elif kind in ("term", "phrase") and _is_searched(token, clause):
            self.words.append(FieldText(clause.field, _unescape(token)))

    def _leave_group(self) -> None:
        """End the innermost group. A closing parenthesis without an opening one has no effect."""
        if len(self.groups) > 1:
            self.groups.pop()


def _is_searched(token: str, scope: _Scope) -> bool:
    """Return whether a term has words that are not excluded.

    The name of a field and an open range such as ``year:>2000`` have no words.
    """
    is_name = scope.field == _EXISTS
    is_range = scope.field is not None and token[0] in "<>"
    return not (scope.excluded or is_name or is_range)


def _unescape(token: str) -> str:
    """Return the words of a term or phrase. Quotes and wildcards separate words, unless they are escaped."""
    return _WILDCARD_OR_ESCAPED.sub(_escaped_sign, token).replace('"', " ")


def _escaped_sign(match: re.Match[str]) -> str:
    return match[1] or " "


def _unescape_name(token: str) -> str:
    """Return the name of a field, which may have wildcards."""
    return _ESCAPED.sub(r"\1", token).replace('"', " ")


_SIMPLE_TOKEN = re.compile(r"(?P<word>(?:\\.|[^\\\"|+() \t\n\r])+)|.", re.DOTALL)
_SIMPLE_WORD = re.compile(r"(?:\\.|[^\\])(?:\\.|[^\\~])*", re.DOTALL)  # without the distance of a fuzzy word
_SIMPLE_DISTANCE = re.compile(r"~\d*")


def parse_simple_query_string(text: str, *, has_not: bool = True) -> str:
    """Return the words of a ``simple_query_string`` query that are not excluded.

    has_not: whether ``-`` excludes words; the query's ``flags`` can disable it.

    >>> parse_simple_query_string('wolf -(fox (dog cat)) "grey pup"~2 e-mail --lynx')
    'wolf grey pup e-mail lynx'
    """
    words = " ".join(_SimpleReader(text, has_not).words())
    return " ".join(words.split())


class _SimpleGroup(NamedTuple):
    """Clauses in parentheses, or the complete query. end: the index of the closing parenthesis."""

    end: int
    excluded: bool


class _SimpleReader:
    """Reads the clauses of a ``simple_query_string`` query from left to right.

    index:     where the next clause begins.
    groups:    the groups around it, the outermost first.
    negations: the number of ``-`` directly before it. An even number has no effect.
    """

    def __init__(self, text: str, has_not: bool) -> None:
        self.text = text
        self.has_not = has_not
        self.index = 0
        self.groups = [_SimpleGroup(len(text), False)]
        self.negations = 0
        self._ends = _ends_of_groups(text)
        self._quotes = _quotes(text)

    def words(self) -> Iterator[str]:
        """Yield the words and phrases that are not excluded. Some are empty."""
        while self.index < len(self.text):
            if self.index >= self.groups[-1].end:
                self._leave_group()
            elif self.has_not and self.text[self.index] == "-":
                self.negations += 1
                self.index += 1
            elif self._begins_group():
                self._enter_group()
            else:
                excluded = self._excluded
                word = self._read_clause()
                if not excluded:
                    yield word

    @property
    def _excluded(self) -> bool:
        """Whether the next clause is excluded."""
        return self.groups[-1].excluded or self.negations % 2 == 1

    def _begins_group(self) -> bool:
        """Return whether the next sign is a parenthesis that is closed in the same group."""
        end = self._ends.get(self.index)
        return end is not None and end < self.groups[-1].end

    def _enter_group(self) -> None:
        self.groups.append(_SimpleGroup(self._ends[self.index], self._excluded))
        self.index += 1
        self.negations = 0

    def _leave_group(self) -> None:
        group = self.groups.pop()
        self.index = group.end + 1
        self.negations = 0

    def _read_clause(self) -> str:
        """Return the word or phrase at the index, and go to its end."""
        end = self.groups[-1].end
        if self.text[self.index] == '"':
            word, self.index = _read_phrase(self.text, self.index, end, self._quotes)
        else:
            word, self.index = _read_word(self.text, self.index, end)
        self.negations = 0
        return word


def _quotes(text: str) -> list[int]:
    """Return the indices of all quotes that are not escaped, ascending."""
    signs = re.finditer(r'\\.|"', text, re.DOTALL)
    return [match.start() for match in signs if match[0] == '"']


def _read_phrase(text: str, begin: int, end: int, quotes: Sequence[int]) -> tuple[str, int]:
    """Return the phrase after a quote, and the index after it. Without a closing quote, it is empty.

    end: end of the group. quotes: indices of all quotes in the text, ascending.
    """
    position = bisect_left(quotes, begin + 1)
    if position == len(quotes) or quotes[position] >= end:
        return "", begin + 1
    closing = quotes[position]
    distance = _SIMPLE_DISTANCE.match(text, closing + 1, end)
    return _unescape(text[begin + 1 : closing]), distance.end() if distance else closing + 1


def _read_word(text: str, begin: int, end: int) -> tuple[str, int]:
    """Return the word at an index, and the index after it. A sign has no word."""
    match = _SIMPLE_TOKEN.match(text, begin, end)
    assert match is not None
    word = _SIMPLE_WORD.match(match["word"] or "")
    return _unescape(word[0]) if word else "", match.end()


def _ends_of_groups(text: str) -> dict[int, int]:
    """Return the index of each opening parenthesis -> the index of the one that closes it."""
    waiting: list[int] = []
    ends: dict[int, int] = {}
    for match in re.finditer(r"\\.|[()]", text, re.DOTALL):
        if match[0] == "(":
            waiting.append(match.start())
        elif match[0] == ")" and waiting:
            ends[waiting.pop()] = match.start()
    return ends
