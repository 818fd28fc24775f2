"""The code of docs/guides/extend.md runs, and its ranker passes the suite."""

import importlib
import re
from importlib.metadata import EntryPoint
from pathlib import Path

from rerank import Document, Workspace
from rerank.engines import registry as engines
from rerank.rankers import registry as rankers
from tests.conformance.ranker_rules import check_ranker

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "extend.md"
RANKER, INSTALLATION, ENGINE, USE = re.findall(
    r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.M | re.S
)


def test_the_ranker_of_the_guide(tmp_path, monkeypatch):
    (tmp_path / "rerank_year.py").write_text(RANKER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    entries = [EntryPoint("year", "rerank_year:YearRanker", rankers.GROUP)]
    monkeypatch.setattr(rankers, "entry_points", lambda group, name="year": entries * (name == "year"))
    workspace = Workspace.create(tmp_path / ".rerank", lang="en")
    years = {"old": 1990, "new": 2020}
    workspace.engine.write(Document(name, text="wolf", extra={"year": year}) for name, year in years.items())
    exec(INSTALLATION, {})
    again = Workspace.open(tmp_path / ".rerank")
    assert [hit["id"] for hit in again.search("wolf", stack="bm25*0 + year*1")] == ["new", "old"]
    check_ranker(importlib.import_module("rerank_year").YearRanker())


def test_the_engine_of_the_guide(tmp_path, monkeypatch):
    (tmp_path / "rerank_elsewhere.py").write_text(ENGINE)
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "text": "A grey wolf"}\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(engines.ENGINES, "elsewhere", "rerank_elsewhere:Elsewhere")
    assert "/data/index" in USE
    exec(USE.replace("/data/index", str(tmp_path / "index")), {})
    again = Workspace.open(tmp_path / "there")
    assert [hit["id"] for hit in again.search("wolf", stack="bm25")] == ["1"]
    assert again.location == f"folder {tmp_path / 'index'}"
