"""Families of rankers: their settings, refused settings, and a family from another package."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from rerank.common.errors import NotTrainedError, UsageError, WorkspaceError
from rerank.documents.records import Document
from rerank.rankers import registry
from rerank.rankers.registry import configurations, group_by_family
from rerank.workflows.train import train
from rerank.workspace.workspace import Workspace

PACKAGE = """
import json
from dataclasses import dataclass
from typing import Annotated
import numpy as np
from rerank import Ranker
from rerank.common.config import Natural, Options, option
from rerank.rankers.registry import Family
from rerank.rankers.training.job import TrainingResult

class YearRanker(Ranker):
    family, variant, bounds = "year", "year", (0.0, 3000.0)
    def __init__(self, name, newest):
        self.name, self.newest, self.version = name, newest, str(newest)
    def encode_documents(self, documents):
        return np.array([[min(d.extra.get("year", 0), self.newest)] for d in documents], dtype=np.float32)
    def encode_query(self, query):
        return np.zeros(1, dtype=np.float32)
    def score(self, query, features):
        return features[:, 0].astype(np.float64)
    def save(self, folder):
        folder.mkdir(parents=True)
        (folder / "ranker.json").write_text(json.dumps({"family": "year", "is": [self.name, self.newest]}))
    @classmethod
    def load(cls, folder):
        return cls(*json.loads((folder / "ranker.json").read_text())["is"])

class YearConfig(Options, frozen=True):
    newest: Annotated[Natural, option("the last year that counts")] = 2100

@dataclass(frozen=True)
class YearFitter:
    job: object
    config: YearConfig
    def fit(self, variant, name):
        return TrainingResult(YearRanker(name, self.config.newest), 0, 0, None, None, False)

FAMILY = Family("year", ("year",), YearRanker, ("links",), "year_family:YearConfig", "year_family:YearFitter")
"""


def configuration(names, config=None, preset=None):
    (options,) = configurations(group_by_family(names), config, preset).values()
    return options


@pytest.fixture
def workspace(tmp_path):
    workspace = Workspace.create(tmp_path / "ws")
    workspace.engine.write(Document(str(y), text="a", extra={"year": y}) for y in (1990, 2020))
    return workspace


def test_a_family_of_another_package_can_be_trained(workspace, tmp_path, monkeypatch):
    (tmp_path / "year_family.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    brought = [EntryPoint("year", "year_family:FAMILY", registry.GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group, name="year": brought * (name == "year"))
    with pytest.raises(NotTrainedError, match=r"train it with `rerank train year`"):
        workspace.ranker("year")
    report = train(workspace, ["year"], config={"newest": 2000}, as_name="age")
    assert (report.rankers[0].to_json()["name"], report.encoded) == ("age", {"age": 2})
    actual = workspace.ranker("age")
    assert (
        actual.score(actual.encode_query(None), actual.encode_documents(workspace.engine.documents())).max()
        == 2000
    )
    with pytest.raises(UsageError, match="newest takes a whole number, 0 or more"):
        train(workspace, ["year"], config={"newest": -1})


@pytest.mark.parametrize(
    ("names", "config", "what"),
    [
        (["s2net"], {"head": "mlp"}, "head has no effect with s2net; it is a setting of text, meta, joint"),
        (["lsi"], {"beta": 1}, "beta has no effect with lsi; it is a setting of s2net"),
        (["text"], {"walks": 3}, "walks has no effect with text; it is a setting of meta, joint"),
        (["text"], {"epoch": 3}, "setting 'epoch' is unknown; did you mean epochs"),
        (["text"], {"vector_size": 9, "head": "mlp"}, "vector-size has no effect with --head mlp"),
        (
            ["dense"],
            {"strategy": "section", "related": 8},
            "related has no effect with --objective contrastive",
        ),
        (["dense"], {"held_out": 0, "patience": 2}, "patience has no effect with --held-out 0"),
        (["dense"], {"steps": 5, "epochs": 2}, "epochs has no effect with --steps 5"),
        (["dense"], {"objective": "hinge"}, "objective takes"),
        (["dense"], {"objective": "cocitation", "strategy": "word"}, "strategy takes sentence"),
        (["dense"], {"held_out": float("nan")}, "held-out takes a number"),
        (["dense"], {"rate": float("inf")}, "rate takes a number"),
        (["dense"], {"passage_tokens": 3}, "passage-tokens takes a whole number"),
        (["dense"], {"batch": 1}, "batch takes a whole number"),
        (["concept"], {"objective": "classifier", "queue": 4}, "queue has no effect with --objective"),
        (["concept"], {"momentum": 1.0}, "momentum takes a number"),
        (["s2net"], {"init": "best"}, "init takes random, cllsi"),
        (["s2net"], {"dim": 0}, "dim takes a whole number, 1 or more, not 0"),
        (["s2net"], {"gamma": 0.0}, "gamma takes a number, above 0, at most 40"),
        (["s2net"], {"gamma": 41.0}, "gamma takes a number"),
    ],
)
def test_invalid_settings_and_settings_without_effect_are_refused(names, config, what):
    with pytest.raises(UsageError, match=what):
        configuration(names, config)


def test_a_record_without_family_names_the_missing_entry(tmp_path):
    (tmp_path / "ranker.json").write_text("{}")
    with pytest.raises(WorkspaceError, match="'family' is missing"):
        registry.load_ranker(tmp_path)


def test_presets_and_objects_configure_the_rankers_of_a_family():
    paper = configuration(["text", "meta"], {"head": "cosine"}, preset="paper")
    assert (paper.head, paper.width, paper.filters) == ("cosine", 4, 256)
    assert configuration(["text"], paper) is paper
    assert configuration(["text"], {"hidden": ["32,16"]}, preset="paper").hidden == (32, 16)
    for call in (lambda: configuration(["lsi"], paper), lambda: configuration(["lsi"], preset="paper")):
        with pytest.raises(UsageError):
            call()


def test_each_family_gets_the_settings_that_its_rankers_read():
    groups = group_by_family(["text", "s2net", "meta"])
    assert [(family.name, names) for family, names in groups.items()] == [
        ("cnn", ["text", "meta"]),
        ("projection", ["s2net"]),
    ]
    cnn, projection = configurations(groups, {"filters": 8, "gamma": 2.0, "dim": 5}).values()
    assert cnn.filters == 8
    assert (projection.gamma, projection.dim) == (2.0, 5)
    with pytest.raises(
        UsageError, match="strategy has no effect with text, meta, s2net; it is a setting of dense"
    ):
        configurations(groups, {"strategy": "word"})
    with pytest.raises(UsageError, match="'filter' is unknown"):
        configurations(groups, {"filter": 8})


def test_families_without_data_to_learn_from_are_refused(workspace):
    with pytest.raises(UsageError, match="--qrels: no effect with concept"):
        train(workspace, ["concept"], qrels={"q": {"1990": 1}}, labeled=[("1990", "2020", 1)])
    with pytest.raises(UsageError, match="text learns from judgments; give --queries and --qrels"):
        train(workspace, ["s2net", "text"], pairs=[("a", "b"), ("c", "d")])


@pytest.mark.parametrize(
    ("name", "given", "what"),
    [
        ("dense", {"preset": "judged"}, "--preset judged learns from judged queries; give --queries"),
        ("dense", {"queries": [{"_id": "q", "text": "a"}]}, "--queries and --qrels belong together"),
        ("dense", {"qrels": {"q": {"1990": 1}}}, "--queries and --qrels belong together"),
        ("dense", {"dev_qrels": {"q": {"1990": 1}}}, "--dev-qrels has no effect without judged queries"),
        ("dense", {"first_stage": "tfidf"}, "--first-stage has no effect without judged queries"),
        ("dense", {"ignore_categories": True}, "--ignore-categories has no effect without judged queries"),
        ("dense", {"infer": False}, "--no-infer-categories has no effect without judged queries"),
        ("dense", {"query_text": []}, "--query-text has no effect with dense"),
        ("s2net", {"query_text": []}, "--query-text has no effect without judged queries"),
        ("s2net", {"config": {"graded": True}}, "--graded has no effect without judged queries"),
        ("s2net", {"config": {"judged": True}}, "--judged has no effect without judged queries"),
    ],
)
def test_options_that_need_judgments_are_refused_without_them(workspace, name, given, what):
    if name == "s2net":
        given = {"pairs": [("a", "b"), ("c", "d")], **given}
    with pytest.raises(UsageError, match=what):
        train(workspace, [name], **given)


@pytest.mark.parametrize(
    ("name", "preset", "given", "epochs", "steps"),
    [
        ("dense", "whole", {}, 8, 240),
        ("dense", "whole", {"epochs": 3}, 3, None),
        ("dense", "whole", {"steps": None}, 8, None),
        ("dense", "paper", {"steps": 40}, 8, 40),
        ("dense", "paper", {"steps": None}, 1, None),
        ("concept", "whole", {"epochs": 2}, 2, None),
    ],
)
def test_given_epochs_or_steps_replace_the_other(name, preset, given, epochs, steps):
    made = configuration([name], given, preset=preset)
    assert (made.epochs, made.steps) == (epochs, steps)
