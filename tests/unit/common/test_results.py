"""Parameters and results of actions have common forms."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from opensearchpy import OpenSearchWarning
from rerank.cli.program import show_once

from rerank.common.results import Report, to_json_value
from rerank.workspace.workspace import Workspace


def test_a_report_converts_to_json(tmp_path):
    @dataclass
    class Part:
        share: float
        all: dict[str, float] = field(repr=False)

    @dataclass
    class Some(Report):
        workspace: Workspace
        path: Path
        names: tuple[str, ...]
        parts: dict[str, list[Part]]
        values: object
        nested: Report | None = None

    one = Some(
        Workspace.create(tmp_path / "ws"),
        tmp_path,
        ("a", "b"),
        {"x": [Part(0.5, {"q": 1.0})]},
        (np.float32(0.5), np.int64(3), np.arange(2)),
    )
    values = one.to_json()
    assert json.loads(json.dumps(values)) == values
    assert values == {
        "workspace": str(tmp_path / "ws"),
        "path": str(tmp_path),
        "names": ["a", "b"],
        "parts": {"x": [{"share": 0.5}]},
        "values": [0.5, 3, [0, 1]],
        "nested": None,
    }
    assert to_json_value([one]) == [values]


def test_numbers_outside_json_become_null():
    values = {"limit": math.inf, "losses": np.array([np.nan, 0.5]), "score": np.float32(-np.inf)}
    assert json.loads(json.dumps(to_json_value(values), allow_nan=False)) == {
        "limit": None,
        "losses": [None, 0.5],
        "score": None,
    }


def test_an_opensearch_warning_is_shown_once(capsys, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    warnings.simplefilter("always")
    show_once()
    for text in ("a setting is deprecated", "a setting is deprecated", "another one\nis, too"):
        warnings.warn_explicit(text, OpenSearchWarning, "base.py", 1, registry=None)
    assert capsys.readouterr().err == "warning: a setting is deprecated\nwarning: another one is, too\n"
