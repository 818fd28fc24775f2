"""Arguments of the wrong type are refused in one line, as the signatures of public functions have them.

>>> @checked
... def best(k: int, names: Sequence[str] = ()) -> int:
...     return k
>>> best(3, ["a"])
3
>>> best("many")
Traceback (most recent call last):
    ...
rerank.errors.UsageError: k takes a whole number, not 'many'
>>> best(3, "tfidf")
Traceback (most recent call last):
    ...
rerank.errors.UsageError: names takes a list of texts, not 'tfidf'; write ['tfidf']
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from numbers import Integral, Real
from typing import Any, TypeVar

from rerank.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])

PATH = "str | os.PathLike[str]"
WORDS = {
    "int": ("a whole number", "whole numbers"),
    "float": ("a number", "numbers"),
    "bool": ("True or False",) * 2,
    "str": ("a text", "texts"),
    "PathLike": ("a path", "paths"),
    "Workspace": ("a workspace, as Workspace.open(FOLDER) gives it", "workspaces"),
    "Query": ("a query", "queries, as read_queries(FILE) gives them"),
    "Qrels": ("judgements, as read_qrels(FILE) gives them",) * 2,
    "LabelledPair": ("a labelled pair", "labelled pairs, as read_labelled_pairs(FILE) gives them"),
    "Mapping": ("a mapping",) * 2,
    "Ranker": ("a ranker", "rankers"),
    "Stack": ("a stack", "stacks"),
}
"""Types that are checked: what one is called, and several. All others are left to the functions."""
MANY = ("Sequence", "Iterable", "Collection")
NUMBERS: dict[str, type] = {"int": Integral, "float": Real}


def checked(function: Function) -> Function:
    """Have a function raise UsageError for arguments that its annotations, if plain, do not allow."""
    kinds = {
        name: list(_kinds(ast.parse(one.annotation.replace("Source", PATH), mode="eval").body))
        for name, one in inspect.signature(function).parameters.items()
        if isinstance(one.annotation, str) and one.kind is not one.VAR_KEYWORD
    }
    names = list(inspect.signature(function).parameters)
    nothing = {name for name, one in inspect.signature(function).parameters.items() if one.default == ()}

    @wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        for name, value in (*zip(names, given), *named.items()):
            if name in kinds and not (value is None and name in nothing):
                _check(name, value, kinds[name])
        return function(*given, **named)

    return called  # type: ignore[return-value]


def _kinds(node: ast.expr) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The types that an annotation allows: their names, and what they hold; "" for what is not checked."""
    if isinstance(node, ast.BinOp):
        yield from _kinds(node.left)
        yield from _kinds(node.right)
    elif isinstance(node, ast.Constant) and node.value is None:
        yield "None", ()
    elif isinstance(node, ast.Subscript):
        ((name, _),) = _kinds(node.value)
        held = tuple(one for one, _ in _kinds(node.slice)) if name in MANY else ()
        yield name, held
    elif isinstance(node, (ast.Name, ast.Attribute)):
        name = node.id if isinstance(node, ast.Name) else node.attr
        yield name if name in WORDS or name in MANY else "", ()
    else:
        yield "", ()


def _check(name: str, value: Any, kinds: Sequence[tuple[str, tuple[str, ...]]]) -> None:
    for kind, held in kinds:
        if not kind or _is(value, kind):
            return
        if kind in MANY and isinstance(value, Iterable) and not isinstance(value, (str, bytes, os.PathLike)):
            if isinstance(value, (list, tuple)) and not all(
                any(_is(one, of) for of in held) for one in value
            ):
                break
            return
    text = next((f"; write [{value!r}]" for kind, held in kinds if kind in MANY and "str" in held), "")
    allowed = dict.fromkeys(_words(kinds))
    raise UsageError(
        f"{name} takes {' or '.join(allowed)}, not {_shown(value)}" + (text if isinstance(value, str) else "")
    )


def _is(value: Any, kind: str) -> bool:
    """Whether a value is of a type: a class is known by its name, which may not have been imported."""
    if kind == "None":
        return value is None
    if kind in NUMBERS:
        return isinstance(value, NUMBERS[kind]) and not isinstance(value, bool)
    if kind == "Qrels" and isinstance(value, Mapping):
        return True
    if kind == "PathLike":
        return isinstance(value, os.PathLike)
    if kind == "Mapping":
        return isinstance(value, Mapping)
    return not kind or any(one.__name__ == kind for one in type(value).__mro__)


def _words(kinds: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[str]:
    for name in _named([name for name, _ in kinds]):
        if name in MANY:
            held = next(held for kind, held in kinds if kind == name)
            yield f"a list of {' or '.join(WORDS[one][1] for one in _named(held))}"
        else:
            yield WORDS[name][0]


def _named(kinds: Sequence[str]) -> list[str]:
    """Those that a message names: a path may be written as a text."""
    texts = "PathLike" in kinds
    return [one for one in kinds if one in (*WORDS, *MANY) and not (texts and one == "str")]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}... ({type(value).__name__})"
