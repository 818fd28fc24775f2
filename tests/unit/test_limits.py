"""Limits of complexity. They equal the present counts and may only fall: lower them when counts fall."""

import ast
import json
import sys
from collections import Counter

import pytest

from tests.programs import output
from tests.unit.test_architecture import COMMANDS, LIBRARY, ROOT, nodes

FINDINGS = {"C901": 0, "PLR0912": 0, "PLR0913": 28, "PLR0915": 0}
"""Findings of ruff at a complexity of 15: complexity, branches, arguments and statements."""
LONG_FUNCTIONS = 0
"""Functions of more than 60 lines."""


@pytest.fixture(scope="module")
def findings() -> Counter[str]:
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--output-format", "json", "--exit-zero"]
    command += ["--select", ",".join(FINDINGS), "--config", "lint.mccabe.max-complexity=15", "rerank", "cli"]
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
