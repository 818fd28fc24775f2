"""The commands of rerank in tests, a small collection, and workspaces made by commands."""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import re
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from rerank.cli.program import run as main

from rerank.workflows.demo import COLLECTION
from tests.support.processes import run_program

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A process that was started in the background ignores ctrl-C, and its child processes inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SIZE = 200
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Small:
    """Files of the collection: ``SIZE`` articles, their lay summaries as queries, and judgments."""

    folder: Path
    corpus: str
    categories: str
    queries: str
    train: str
    dev: str
    test: str
    documents: list[dict[str, Any]]


@dataclass(frozen=True)
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    def ok(self) -> Result:
        """Return this result of a command that must succeed."""
        assert self.code == 0, self
        return self

    def fails(self, code: int, *parts: str) -> None:
        """Assert this exit code, no other output, and one line on stderr that contains these parts."""
        assert (self.code, self.out) == (code, ""), self
        assert self.err.startswith("rerank: "), self
        assert self.err.count("\n") == 1, self
        assert "Traceback" not in self.err
        for part in parts:
            assert part in self.err, self


def run_here(*args: object, stdin: bytes = b"") -> Result:
    """Run the command in this process, with its handling of errors."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["rerank", *map(str, args)], io.TextIOWrapper(io.BytesIO(stdin))
    code: object = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv, sys.stdin = before
    assert code is None or isinstance(code, int)
    return Result(code or 0, out.getvalue(), err.getvalue())


def console_script() -> list[str]:
    """Return the installed console command."""
    beside = Path(sys.executable).with_name("rerank")
    found = str(beside) if beside.exists() else shutil.which("rerank")
    assert found, "the package is not installed: pip install -e '.[dev]'"
    return [found]


def run_in_subprocess(*args: object, **options: Any) -> Result:
    """Run the command in a separate process."""
    done = run_program(*console_script(), *args, **options)
    return Result(done.returncode, done.stdout, done.stderr)


def write_json_lines(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return str(path)


def limit_file_size(size: int) -> Callable[[], None]:
    """Return a function that limits file sizes, so that writing fails as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.fixture(scope="session")
def run() -> Callable[..., Result]:
    """Run the command in this process."""
    return run_here


@pytest.fixture(scope="session")
def spawn() -> Callable[..., Result]:
    """Run the command in a separate process."""
    return run_in_subprocess


@pytest.fixture(scope="session")
def script() -> list[str]:
    """The command, for tests that start the process."""
    return console_script()


@pytest.fixture(scope="session")
def write_lines() -> Callable[[Path, list[dict[str, Any]]], str]:
    """Write records as JSON lines, and return the file's name."""
    return write_json_lines


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    folder = tmp_path_factory.mktemp("small")

    def read(name: str) -> list[dict[str, Any]]:
        with gzip.open(COLLECTION / name, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    documents = read("corpus.jsonl.gz")[:SIZE]
    known = {document["_id"] for document in documents}
    used = {category for document in documents for category in document["categories"]}
    header, *edges = (COLLECTION / "categories.tsv").read_text("utf-8").splitlines()
    edges = [edge for edge in edges if edge.split("\t")[0] in used]
    (folder / "categories.tsv").write_text("\n".join([header, *edges]) + "\n", "utf-8")
    queries = [query for query in read("queries.jsonl.gz") if query["_id"].removeprefix("q:") in known]
    asked = {query["_id"] for query in queries}
    for split in SPLITS:
        header, *rows = (COLLECTION / "qrels" / f"{split}.tsv").read_text("utf-8").splitlines()
        kept = [row for row in rows if row.split("\t")[0] in asked and row.split("\t")[1] in known]
        (folder / f"{split}.tsv").write_text("\n".join([header, *kept]) + "\n", "utf-8")
    return Small(
        folder,
        write_json_lines(folder / "corpus.jsonl", documents),
        str(folder / "categories.tsv"),
        write_json_lines(folder / "queries.jsonl", queries),
        *(str(folder / f"{split}.tsv") for split in SPLITS),
        documents,
    )


def write_demo_collection(small: Small, folder: Path) -> Path:
    """Write the small collection in the layout of the demo: compressed, and with the same names."""
    (folder / "qrels").mkdir(parents=True)
    for name in ("corpus", "queries"):
        content = Path(getattr(small, name)).read_bytes()
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(content))
        if name == "queries":
            (folder / "short-queries.jsonl.gz").write_bytes(gzip.compress(content))
    for split in SPLITS:
        shutil.copy(getattr(small, split), folder / "qrels")
    shutil.copy(small.categories, folder)
    return folder


@pytest.fixture(scope="session")
def trained(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with trained rankers and a tuned stack. Tests must not change it: see ``workspace``."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # one process trains for all
        shared = shared.parent
    folder = shared / "trained" / "ws"
    folder.parent.mkdir(exist_ok=True)
    with open(folder.parent / "lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder.parent / "done").exists():
            _train(small, folder)
            (folder.parent / "done").touch()
    return folder


def _train(small: Small, folder: Path) -> None:
    files, where = ("--queries", small.queries, "--qrels"), ("-w", folder)
    for command in (
        ("ingest", small.corpus, "--categories", small.categories),
        ("train", "text", "meta", *files, small.train, "--dev-qrels", small.dev, "--epochs", 4),
        ("tune", "--stack", "tfidf,text,meta", *files, small.dev),
    ):
        run_here(*command, *where).ok()


def copy_workspace(workspace: Path, folder: Path) -> Path:
    """Copy a workspace that other processes may read."""
    # SQLite has these files while another process reads. They are empty, and can vanish during the copy.
    reading = shutil.ignore_patterns("*.db-shm", "*.db-wal")
    return Path(shutil.copytree(workspace, folder, ignore=reading))


@pytest.fixture
def workspace(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained workspace."""
    return copy_workspace(trained, tmp_path / "ws")


@pytest.fixture
def plain(small: Small, tmp_path: Path) -> Path:
    """A workspace of twenty documents without trained rankers."""
    few = write_json_lines(tmp_path / "few.jsonl", small.documents[:20])
    run_here("ingest", few, "-w", tmp_path / "plain").ok()
    return tmp_path / "plain"


ROOT = Path(__file__).resolve().parents[2]

HIDING = """
import sys
from importlib.machinery import PathFinder

class VisibleFinder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {names!r} else super().find_spec(name, path, target)

sys.meta_path[:] = [VisibleFinder if finder is PathFinder else finder for finder in sys.meta_path]
"""


def project() -> dict[str, object]:
    """Return the table ``[project]`` of pyproject.toml."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 and later read TOML")
    table: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return table


def closure(requirements: Iterable[str]) -> set[str]:
    """Return names of the installed distributions that these requirements need, also indirectly."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        wanted, extra = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        try:
            theirs = [Requirement(text) for text in distribution(wanted.name).requires or ()]
        except PackageNotFoundError:
            continue
        if name in found and not wanted.extras:
            continue
        found.add(name)
        waiting += [(one, part) for one in theirs for part in ("", *wanted.extras)]
    return found


def environment_with(folder: Path, *extras: str) -> dict[str, str]:
    """Return environment variables of a process with rerank, its base dependencies and these extras."""
    table = project()
    declared: list[str] = list(table["dependencies"])  # type: ignore[call-overload]
    for extra in extras:
        declared += table["optional-dependencies"][extra]  # type: ignore[index]
    there = closure(declared) | {str(table["name"])}
    hidden = {
        module
        for module, names in packages_distributions().items()
        if not there & {re.sub(r"[-_.]+", "-", name).lower() for name in names}
    }
    (folder / "sitecustomize.py").write_text(HIDING.format(names=hidden), "utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
