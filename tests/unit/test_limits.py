"""Limits of complexity. They equal the present counts and may only fall: lower them when counts fall."""

import ast
import json
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.support.processes import output
from tests.unit.test_architecture import COMMANDS, LIBRARY, ROOT, nodes

FINDINGS = {"C901": 0, "PLR0912": 0, "PLR0913": 24, "PLR0915": 0}
"""Findings of ruff at a complexity of 15: complexity, branches, arguments and statements.

Arguments are counted in the library only: a command of Click has one for each option.
"""
LONG_FUNCTIONS = 0
"""Functions of more than 60 lines."""


@pytest.fixture(scope="module")
def findings() -> Counter[str]:
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--output-format", "json", "--exit-zero"]
    command += ["--select", ",".join(FINDINGS), "--config", "lint.mccabe.max-complexity=15", "rerank", "cli"]
    command += ["--per-file-ignores", "cli/*.py:PLR0913"]
    return Counter(finding["code"] for finding in json.loads(output(*command, cwd=ROOT)))


@pytest.mark.parametrize("rule", FINDINGS)
def test_complexity_rules_do_not_have_more_findings(findings, rule):
    assert findings[rule] <= FINDINGS[rule]


def test_long_functions_do_not_become_more_frequent():
    functions = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in (*LIBRARY, *COMMANDS)
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > 60
    ]
    assert len(functions) <= LONG_FUNCTIONS, "\n".join(functions)


_VAGUE = """
about asked both brought by chosen done each found given here how it kept known lacking least left
looks made many most named of one ones other others own part place places read rest said same seen
some taken that then there thing things this told tried used wanted way what where which whole
"""
VAGUE_NAMES = frozenset(_VAGUE.split())
"""Names of variables and parameters that do not say what the value is."""
LIMITS = {
    "rerank": {
        "vague names": 0.1,
        "double assignments": 0.0,
        "comprehensions": 18.2,
        "decisions": 29.4,
        "dense functions": 0,
    },
    "cli": {
        "vague names": 0.0,
        "double assignments": 0.0,
        "comprehensions": 8.4,
        "decisions": 28.2,
        "dense functions": 0,
    },
}
"""Vague names per 100 variables and parameters; decisions per 100 lines in the bodies of functions; number of
dense functions; the others per 1,000 lines."""
MOST_DENSE = 0.6
"""Most decisions per line in the body of a function of ten lines or more."""


@pytest.mark.parametrize("kind", [*LIMITS["rerank"]])
@pytest.mark.parametrize("package", LIMITS)
def test_code_does_not_become_harder_to_read(package, kind):
    measured, examples = readability(ROOT / package)[kind]
    assert measured <= LIMITS[package][kind], "\n".join(examples)


@cache
def readability(package: Path) -> dict[str, tuple[float, list[str]]]:
    """Return kind -> (its frequency, the lines of its instances) for all modules of a package."""
    lines = variables = 0
    vague: list[str] = []
    double: list[str] = []
    comprehensions: list[str] = []
    body_lines = choices = 0
    dense: list[tuple[float, str]] = []
    too_dense: list[str] = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text("utf-8")
        lines += len(text.splitlines())
        module = path.relative_to(package.parent)
        for node in nodes(path):
            place = f"{module}:{getattr(node, 'lineno', 0)}"
            name = variable_name(node)
            if name is not None:
                variables += 1
            if name is not None and name.strip("_") in VAGUE_NAMES:
                vague.append(f"{place} {name}")
            if is_double_assignment(node):
                double.append(place)
            if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
                comprehensions.append(place)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length, count = body_of(node)
                body_lines += length
                choices += count
                function = f"{place} {node.name}: {count} in {length} lines"
                dense.append((-count / max(length, 10), function))
                if length >= 10 and count / length > MOST_DENSE:
                    too_dense.append(function)
    return {
        "vague names": (100 * len(vague) / variables, vague),
        "double assignments": (1000 * len(double) / lines, double),
        "comprehensions": (1000 * len(comprehensions) / lines, comprehensions),
        "decisions": (100 * choices / body_lines, [text for _, text in sorted(dense)[:30]]),
        "dense functions": (len(too_dense), too_dense),
    }


def body_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, int]:
    """Return the number of lines and of decisions in the body of a function, without its docstring."""
    statements = function.body[1:] if ast.get_docstring(function) else function.body
    if not statements:
        return 0, 0
    count = sum(decisions(node) for statement in statements for node in ast.walk(statement))
    return (statements[-1].end_lineno or 0) - statements[0].lineno + 1, count


_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.NamedExpr)


def decisions(node: ast.AST) -> int:
    """Count the branches, loops, conditions and assignment expressions that a node itself is or has."""
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return int(isinstance(node, _BRANCHES))


def variable_name(node: ast.AST) -> str | None:
    """Return the name that a node assigns to a variable or a parameter."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
        return node.arg
    return None


def is_double_assignment(node: ast.AST) -> bool:
    """Return whether a statement is `a, b = x, y`. A swap is none."""
    if not (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    ):
        return False
    targets = {ast.unparse(element) for element in node.targets[0].elts}
    values = {ast.unparse(element) for element in node.value.elts}
    return targets != values


def test_the_gauge_counts_by_hand(tmp_path):
    """Of seven assigned names, two are vague; one of two tuples is a swap."""
    (tmp_path / "module.py").write_text(
        "def total(one, weight):\n"
        "    found, score = one, weight\n"
        "    weight, score = score, weight\n"
        "    return sum(row for row in range(3)) + found + score\n",
        "utf-8",
    )
    figures = readability(tmp_path)
    assert figures["vague names"][0] == pytest.approx(100 * 2 / 7)
    assert figures["double assignments"][0] == pytest.approx(1000 / 4)
    assert figures["comprehensions"][0] == pytest.approx(1000 / 4)
    assert figures["decisions"][0] == pytest.approx(100 / 3)


@pytest.mark.parametrize(("branches", "count"), [(3, 0), (4, 1)])
def test_dense_functions_are_counted(tmp_path, branches, count):
    """Ten lines with six decisions are allowed, and with eight they are not."""
    branch = "    if a and b:\n        a += 1\n"
    rest = "    a += 1\n" * (10 - 2 * branches)
    (tmp_path / "module.py").write_text(f"def total(a, b):\n{branch * branches}{rest}", "utf-8")
    assert readability(tmp_path)["dense functions"][0] == count
