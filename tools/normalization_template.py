"""Write index_templates/rerank-normalization.json: the rules of documents/text.py for a cluster's queries.

Run it after a change of the rules: python tools/normalization_template.py
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Iterator
from html.entities import html5, name2codepoint
from pathlib import Path
from typing import Any

from rerank.documents.text import CJK, IGNORABLE, SPACELESS, normalize, pairs_pattern, searchable

FILE = Path(__file__).parents[1] / "index_templates" / "rerank-normalization.json"
HANGUL = range(0xAC00, 0xD7A4)
HALF_WIDTH_KANA = range(0xFF66, 0xFF9E)
SOUND_MARKS = "\uff9e\uff9f"
_SPECIAL = re.compile(rf"[\\#=<>\s{IGNORABLE}]")


def entities() -> Iterator[tuple[str, str]]:
    """Yield the names of letters that the char filter html_strip does not have.

    ``<`` becomes a space, because html_strip would remove tags.
    """
    yield "<", " "
    yield "&apos;", "'"
    for name, value in sorted(html5.items()):
        is_letter = len(value) == 1 and value.isalpha() and normalize(value) == value
        if is_letter and name.endswith(";") and name[:-1] not in name2codepoint:
            yield f"&{name}", value


def index_form(character: str) -> str:
    """Return the characters in index terms for a character."""
    return searchable(character, stemmed=False)


def forms() -> Iterator[tuple[str, str]]:
    """Yield all characters that normalization changes, and decomposed letters, except Korean ones."""
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) in ("Cs", "Co", "Cn") or code in HANGUL:
            continue
        normal = index_form(character)
        if normal != character:
            yield character, normal
        letters = unicodedata.normalize("NFD", character)
        if len(letters) > 1 and unicodedata.normalize("NFC", letters) == character:
            yield letters, normal
            first_pair = unicodedata.decomposition(character).split()
            yield "".join(chr(int(part, 16)) for part in first_pair), normal
    for code in HALF_WIDTH_KANA:
        for mark in SOUND_MARKS:
            normal = normalize(chr(code) + mark)
            if len(normal) == 1:
                yield chr(code) + mark, normal


def rules(pairs: Iterator[tuple[str, str]]) -> list[str]:
    """Return pairs as rules of a mapping char filter."""
    return [f"{_escape(before)}=>{_escape(after)}" for before, after in sorted(dict(pairs).items())]


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def template() -> dict[str, Any]:
    """Return the component template."""
    pairs = {"type": "pattern_replace", "replacement": "$1$2 "}
    filters = {
        "rerank_entities": {"type": "mapping", "mappings": rules(entities())},
        "rerank_references": {"type": "html_strip"},
        "rerank_forms": {"type": "mapping", "mappings": rules(forms())},
        "rerank_pairs": {**pairs, "pattern": pairs_pattern(SPACELESS)},
        "rerank_cjk_pairs": {**pairs, "pattern": pairs_pattern(SPACELESS + CJK)},
    }
    description = "rerank: the char filters of rerank_query. tools/normalization_template.py writes them"
    return {
        "template": {"settings": {"index": {"analysis": {"char_filter": filters}}}},
        "_meta": {"description": description},
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(template()) + "\n")
