"""The site, and the commands of the tutorials. Their output is compared with the page.

A block ``console`` has commands after ``$`` and their output. ``...`` stands for any text, also of several
lines. Numbers may differ by 15 percent or 0.05, because other machines train other weights.
"""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rerank.workflows.demo import COLLECTION
from tests.support.hook import running
from tests.support.processes import output
from tests.unit.test_docs import EVERY, ROOT
from tools.opensearch_node import free_port

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
END = "---- end of the command"

pytestmark = pytest.mark.slow


def steps(page: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a page, each with the output that the page shows."""
    text = (TUTORIALS / page).read_text("utf-8")
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            lines = part.splitlines(keepends=True)
            count = next(n for n in range(1, len(lines) + 1) if complete("".join(lines[:n])))
            yield "".join(lines[:count]), "".join(lines[count:])


def complete(command: str) -> bool:
    """Return whether a command needs no further line."""
    try:
        shlex.split(command)
    except ValueError:  # an open quotation
        return False
    return not command.endswith("\\\n")


class Shell:
    """A shell in a folder. Its background processes end with it."""

    def __init__(self, folder: Path, replaced: Mapping[str, str]) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.replaced = replaced
        self.process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env={**os.environ, "PATH": path, "COLUMNS": "120"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "stderr").open("wb"),
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[str, int]:
        """Return the output of a command and its exit code."""
        assert self.process.stdin
        assert self.process.stdout
        for shown, real in self.replaced.items():
            command = command.replace(shown, real)
        self.process.stdin.write(f"{command}\ncode=$?; echo; echo '{END}' $code\n")
        self.process.stdin.flush()
        output = ""
        for line in self.process.stdout:
            if line.startswith(END):
                return output.removesuffix("\n"), int(line.split()[-1])
            output += line
        raise AssertionError("the shell has ended")

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()


def differ(shown: str, real: str) -> bool:
    """Return whether an output differs from the shown one."""
    parts = [re.sub(r"\s+", " ", part).strip() for part in shown.split("...")]
    real = re.sub(r"\s+", " ", real).strip()
    pattern = ".*?".join(
        "".join(
            f"({NUMBER.pattern})" if NUMBER.fullmatch(token) else re.escape(token)
            for token in re.split(f"({NUMBER.pattern})", part)
        )
        for part in parts
    )
    match = re.fullmatch(pattern, real)
    if not match:
        return True
    numbers = (float(number.replace(",", "")) for number in NUMBER.findall(" ".join(parts)))
    pairs = zip(numbers, (float(number.replace(",", "")) for number in match.groups()), strict=True)
    return any(abs(a - b) > max(0.15 * abs(a), 0.05) for a, b in pairs)


def follow(page: str, folder: Path, replaced: Mapping[str, str]) -> None:
    shell = Shell(folder, replaced)
    try:
        for command, shown in steps(page):
            output, code = shell.run(command)
            assert code == 0, f"{command}{output}{(folder / 'stderr').read_text()[-2000:]}"
            assert not shown or not differ(shown, output), f"{command}shown:\n{shown}\nreal:\n{output}"
    finally:
        shell.stop()


def test_differ_detects_differences():
    assert not differ("3 documents\n0.4310  1,979 ...\n", "3 documents\n0.4412 1,979 more\nlines\n")
    assert differ("3 documents\n", "4 documents\n")
    assert differ("3 documents\n", "3 queries\n")


def test_the_tutorial_on_your_own_data(tmp_path):
    follow("your-own-data.md", tmp_path, {})


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_tutorial_on_an_existing_index(tmp_path):
    """It runs on a separate node, so that other plugin tests do not wait for it."""
    with running() as node:
        port = free_port()
        replaced = {"http://127.0.0.1:9200": node.url, "127.0.0.1:8765": f"127.0.0.1:{port}"}
        # The page shows no training numbers. The other page trains all epochs on all queries.
        replaced["rerank train text meta"] = "rerank train text meta --epochs 2 --word-epochs 1 --walks 1"
        for name in ("train.tsv", "dev.tsv"):
            lines = (COLLECTION / "qrels" / name).read_text("utf-8").splitlines(keepends=True)
            (tmp_path / name).write_text("".join(lines[:200]), "utf-8")
            replaced[f"collection/qrels/{name}"] = name
        replaced["rerank serve"] = f"rerank serve --port {port}"
        follow("opensearch.md", tmp_path, replaced)


def run_examples(page: Path, skipped: str = "") -> int:
    """Run the examples of a page, except for those after the text ``skipped``. Return their number."""
    text = page.read_text("utf-8")
    if skipped:
        text = text.partition(skipped)[0]
    lines = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S))
    test = doctest.DocTestParser().get_doctest(lines, {}, page.name, None, 0)
    said: list[str] = []
    actual = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not actual.failed, "".join(said)
    return int(actual.attempted)


def test_the_guide_on_python_runs():
    has_pandas = importlib.util.find_spec("pandas") is not None
    page = TUTORIALS.parent / "guides" / "python.md"
    assert run_examples(page, skipped="" if has_pandas else "<!-- needs pandas -->") > 38


def test_the_site_builds(tmp_path):
    """The build has no warnings, and the pages load nothing from other hosts."""
    # Not --quiet: it hides warnings from --strict.
    build = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path)
    output(*build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^\s>]*",
            page.read_text("utf-8"),
        )
        assert not loaded, page.name
    commands = (tmp_path / "reference" / "commands" / "index.html").read_text("utf-8")
    assert all(name.split()[-1] in commands for name in EVERY)
