"""The words of queries in OpenSearch's query languages equal those that OpenSearch itself parses."""

from __future__ import annotations

import random
import re

import pytest

from rerank.service.query_text import query_text
from tools.opensearch_node import Node

PIECES = {
    "query_string": [
        *("wolf", "fox", "pup", "dog", "cat") * 3, *("NOT ", "-", "!", "(", "(", ")", ")") * 3,
        *(" ",) * 25, "AND ", "OR ", "+", " t:", '"', '"', "^2", "~1", "\\", "\u3000", "\u00a0", "&&", "|| ",
        " [a TO b]", " _exists_:t", " t:>a", "*", "-(", " -t:", " t:(",
    ],
    "simple_query_string": [
        *("wolf", "fox", "pup", "dog", "cat") * 3, *("-", "-", "(", "(", ")", ")") * 3,
        *(" ",) * 25, "+", "|", "NOT ", '"', '"', "~1", "\\", "\u3000", "*", "-(", "--",
    ],
}  # fmt: skip


def words_of_parse(explanation: str) -> set[str]:
    """Return the words of a query as Lucene prints it that are not below a minus sign."""
    words: set[str] = set()
    scopes = [False]
    is_excluded = False
    for token in re.findall(r'\(|\)|(?<![^ (])-(?=\S)|t:"[^"]*"|t:[{\[][^\]}]*.|t:[^ ()]+|\S', explanation):
        if token == "-":
            is_excluded = True
        elif token == "(":
            scopes.append(scopes[-1] or is_excluded)
            is_excluded = False
        elif token == ")":
            scopes.pop()
            is_excluded = False
        elif token.startswith("t:"):
            is_range = token[2] in "{["
            if not (scopes[-1] or is_excluded or is_range):
                words |= set(re.findall("wolf|fox|pup|dog|cat", token))
            is_excluded = False
    return words


@pytest.mark.parametrize("kind", list(PIECES))
def test_words_equal_the_parse_of_the_node(node: Node, kind: str, name: str) -> None:
    mappings = {"properties": {"t": {"type": "text"}}}
    settings = {"number_of_shards": 1, "number_of_replicas": 0}
    node.request("PUT", f"/{name}", {"mappings": mappings, "settings": settings})
    generator = random.Random(1)
    compared = 0
    for _ in range(400):
        text = "".join(generator.choices(PIECES[kind], k=generator.randint(3, 10)))
        fields = {"default_field": "t"} if kind == "query_string" else {"fields": ["t"]}
        query = {kind: {"query": text, **fields}}
        answer = node.request("POST", f"/{name}/_validate/query?explain=true&rewrite=false", {"query": query})
        explanation = answer["explanations"][0]
        if not explanation["valid"] or "unmapped" in explanation["explanation"]:
            continue
        compared += 1
        actual = set(re.findall("wolf|fox|pup|dog|cat", query_text(query) or ""))
        assert actual == words_of_parse(explanation["explanation"]), (text, explanation["explanation"])
    assert compared > 40
