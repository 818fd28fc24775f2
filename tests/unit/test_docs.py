"""The documentation agrees with the code: commands, options and links."""

import dataclasses
import re
import sys
from pathlib import Path

import click
import msgspec
import pytest
from rerank.cli.program import COMMANDS, cli

from rerank.hook.reports import InstallReport, Status
from rerank.hook.trial import SearchTrial
from rerank.service.app import ENDPOINTS
from rerank.stack.file import StackFile
from rerank.stack.normalize import NORMALIZATIONS
from rerank.workflows.attach import AttachReport
from rerank.workflows.auto.run import AutoReport
from rerank.workflows.encode import EncodeReport
from rerank.workflows.ingest import IngestReport
from rerank.workflows.promote import Promotion, Rollback
from rerank.workflows.status import StatusReport
from rerank.workflows.train import TrainReport
from tests.support.processes import output
from tools import reference
from tools.site import commands_of, on_page_content

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
    *sorted(DOCS.rglob("*.md")),
]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^()\s]+)\)")
GENERATED = {
    DOCS / "reference" / "python.md",
    DOCS / "reference" / "commands.md",
    ROOT / "benchmarks" / "papers" / "RESULTS.md",
}
LONGEST_LINE = 150
"""Characters of a line of prose, so that a change of a sentence is a short difference."""


def command(name: str) -> click.Command:
    """Return a command or a subcommand, for example ``hook install``."""
    actual: click.Command = cli
    for part in name.split():
        assert isinstance(actual, click.Group)
        inner = actual.get_command(click.Context(actual), part)
        assert inner is not None, name
        actual = inner
    return actual


def subcommands(name: str) -> list[str]:
    group = command(name)
    return group.list_commands(click.Context(group)) if isinstance(group, click.Group) else []


EVERY = [path for name in COMMANDS for path in (name, *(f"{name} {one}" for one in subcommands(name)))]
"""All commands and subcommands."""


def parameters(name: str) -> list[click.Parameter]:
    return command(name).get_params(click.Context(command(name)))


def options(name: str) -> list[str]:
    return [text for p in parameters(name) for text in (*p.opts, *p.secondary_opts) if text[0] == "-"]


KNOWN = {option for name in EVERY for option in options(name)} | {
    *(text for parameter in cli.params for text in parameter.opts),
    "--help",
    "--build-arg",
}
"""Options that pages may name."""


@pytest.mark.parametrize("name", EVERY)
def test_every_command_and_option_has_help(name):
    assert command(name).help
    for parameter in parameters(name):
        assert isinstance(parameter, click.Argument) or parameter.help, parameter.name


@pytest.mark.parametrize("name", EVERY)
def test_options_are_unique_and_few(name):
    shown = [text for text in options(name) if text not in ("-h", "--help")]
    assert len(set(shown)) == len(shown)
    assert len([p for p in command(name).params if isinstance(p, click.Option)]) <= 21


def test_stack_files_and_normalizations_are_documented():
    page = (DOCS / "reference" / "formats.md").read_text("utf-8")
    section = page.partition("### Stack file")[2].partition("\n## ")[0]
    for field in StackFile.__struct_fields__:
        assert f'"{field}":' in section, field
    (option,) = (one for one in command("tune").params if one.name == "normalizations")
    for method in NORMALIZATIONS:
        assert f"| `{method}` |" in section, method
        assert re.search(rf"\b{method}\b", option.help), method


REPORTS: dict[str, type] = {
    "ingest": IngestReport,
    "train": TrainReport,
    "auto": AutoReport,
    "promote": Promotion,
    "rollback": Rollback,
    "status": StatusReport,
    "encode": EncodeReport,
    "attach": AttachReport,
    "hook install": InstallReport,
    "hook status": Status,
    "hook test": SearchTrial,
}
"""Command -> the report that ``--json`` prints."""


@pytest.mark.parametrize("name", REPORTS)
def test_documented_json_keys_exist(name):
    """A key is in backticks and outside of the parentheses."""
    page = (DOCS / "reference" / "formats.md").read_text("utf-8")
    (row,) = re.findall(rf"^\| `{name}`.*? \| (.*) \|$", page.partition("## JSON output")[2], re.M)
    keys = re.findall(
        r"`(\w+)`", re.sub(r"\([^()]*(?:\([^()]*\)[^()]*)*\)", "", row.partition(": lists of")[0])
    )
    assert keys
    known = {field.name for field in dataclasses.fields(REPORTS[name])} | {"better", "shown"}
    assert set(keys) <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_on_a_page_exist(page):
    for language, block in FENCE.findall(page.read_text("utf-8")):
        if language != "sh":
            continue
        for line in re.findall(r"(?:^ *|/)rerank (.*)$", block.replace("\\\n", " "), re.M):
            name, second = (*line.split(), "")[:2]
            assert name in COMMANDS, line
            name = f"{name} {second}" if second in subcommands(name) else name
            shown = re.findall(r"(?<=\s)--?[a-z][a-z-]*", re.sub(r'"[^"]*"', '""', line))
            assert set(shown) <= set(options(name)), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_in_the_text_of_a_page_exist(page):
    if page.name in ("CONTRIBUTING.md", "CHANGELOG.md") or (ROOT / "benchmarks") in page.parents:
        return  # options of pytest and of scripts; removed options
    for shown in re.findall(r"`(--[a-z][a-z-]*)", FENCE.sub("", page.read_text("utf-8"))):
        assert shown in KNOWN, shown


def test_requests_of_pages_are_valid():
    """The body of each shown request to the service has only known fields, with values of their types."""
    bodies = {endpoint.path: endpoint.body for endpoint in ENDPOINTS}
    request = re.compile(r"""curl http://127\.0\.0\.1:8765(/\S+) .*?-d '(\{[^']*\})'""", re.DOTALL)
    shown = [match for page in PAGES for match in request.findall(page.read_text("utf-8"))]
    assert shown
    for path, body in shown:
        assert msgspec.json.decode(body, type=bodies[path])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page):
    for target in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}"


@pytest.mark.parametrize("page", sorted({*PAGES} - GENERATED), ids=lambda page: page.name)
def test_lines_of_prose_are_short(page):
    """Tables, code and generated sentences may have longer lines."""
    for line in FENCE.sub("", page.read_text("utf-8")).splitlines():
        assert len(line) <= LONGEST_LINE or line.startswith("|") or "<!-- end -->" in line, line


def test_pages_that_code_and_messages_name_exist():
    """Such a name is the path of a page, and optionally the anchor of a section."""
    suffixes = ("*.py", "*.java", "*.yaml", "*.yml")
    named = output("git", "grep", "-ohE", r"docs/[a-z/-]+\.md(#[a-z0-9_-]+)?", "--", *suffixes, cwd=ROOT)
    for target in set(named.split()):
        path, _, anchor = target.partition("#")
        assert (ROOT / path).is_file(), target
        assert not anchor or anchor in anchors(ROOT / path), target


def test_generated_pages_are_current():
    """If this fails, run `python tools/reference.py`."""
    for path, text in reference.pages().items():
        assert path.read_text("utf-8") == text, path


@pytest.mark.parametrize(
    "script",
    [
        "papers/page.py",
        "quality/demo.py",
        "quality/peers/table.py",
        "quality/signals.py",
        "speed/growth_page.py",
    ],
)
def test_tables_equal_their_results(script):
    output(sys.executable, f"benchmarks/{script}", "--check", cwd=ROOT)


def test_the_copy_button_copies_only_commands():
    console = """$ printf 'a
b' > file
$ sort file \\
    --reverse
b
a
$ ls
file"""
    assert commands_of(console) == "printf 'a\nb' > file\nsort file \\\n    --reverse\nls"
    shown = on_page_content('<div class="highlight"><code>$ echo &lt;b&gt;\n&lt;b&gt;</code></div>')
    assert 'data-copy="echo &lt;b&gt;"' in shown


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text("utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_named_benchmarks_exist():
    """Of the code, the docs and the messages. The changelog names scripts of its time."""
    folders = (ROOT / name for name in ("rerank", "cli", "tools", "benchmarks"))
    files = [*(path for folder in folders for path in folder.rglob("*.py")), *PAGES]
    for file in files:
        for script in re.findall(r"\bbenchmarks/[\w/]+\.py", file.read_text("utf-8")):
            assert file.name == "CHANGELOG.md" or (ROOT / script).is_file(), f"{file}: {script}"


def test_options_of_claims_exist():
    """The script of a claim has each option of its command, or a module that it shares with others has it."""
    folder = ROOT / "benchmarks"
    shared = [folder / "papers" / "running.py", folder / "quality" / "peers" / "collection.py"]
    shared_source = "".join(path.read_text("utf-8") for path in shared)
    rows = re.findall(r"^\| \w+ \| .*", (folder / "README.md").read_text("utf-8"), re.M)
    commands = re.findall(r"`((?:papers|quality|speed|robustness)/\S+\.py)( [^`]*)?`", "\n".join(rows))
    assert len(commands) >= 25
    for script, arguments in commands:
        source = (folder / script).read_text("utf-8") + shared_source
        for option in re.findall(r"--[a-z][a-z-]*", arguments):
            assert f'"{option}"' in source, f"{script}: {option}"


def test_images_exist():
    for page in PAGES:
        for target in re.findall(r"!\[[^\]]*\]\(([^()\s]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"
