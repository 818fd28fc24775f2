"""The documentation says what the code does: commands and options, links, and the layers of imports."""

import ast
import re
from pathlib import Path

import click
import pytest
from rerank.cli.program import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(DOCS.glob("*.md")),
]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^()\s]+)\)")


def command(name: str) -> click.Command:
    """A command, or one of a group: ``hook install``."""
    found: click.Command = cli
    for part in name.split():
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), part)
        assert inner is not None, name
        found = inner
    return found


def subcommands(name: str) -> list[str]:
    group = command(name)
    return group.list_commands(click.Context(group)) if isinstance(group, click.Group) else []


EVERY = [path for name in COMMANDS for path in (name, *(f"{name} {one}" for one in subcommands(name)))]
"""Commands and subcommands."""


def options(name: str) -> list[str]:
    return [text for p in command(name).params for text in (*p.opts, *p.secondary_opts) if text[0] == "-"]


def section(name: str) -> str:
    """The part of docs/commands.md on one command."""
    found = re.search(
        rf"^##+ rerank {name}$(.*?)(?=^##+ |\Z)", (DOCS / "commands.md").read_text("utf-8"), re.M | re.S
    )
    assert found, f"docs/commands.md has no section 'rerank {name}'"
    return found[1]


def rows(name: str) -> list[list[str]]:
    """The cells of its table: option, default, meaning."""
    lines = [line for line in section(name).splitlines() if line.startswith("| `")]
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]


@pytest.mark.parametrize("name", EVERY)
def test_every_option_is_documented_and_no_other(name):
    documented = {text for row in rows(name) for text in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", row[0])}
    assert documented == set(options(name))
    arguments = [p.human_readable_name for p in command(name).params if isinstance(p, click.Argument)]
    assert [row[0] for row in rows(name)][: len(arguments)] == [f"`{name.strip('.')}`" for name in arguments]


@pytest.mark.parametrize("name", EVERY)
def test_documented_defaults_are_the_commands_own(name):
    for option in command(name).params:
        default = option.default[0] if isinstance(option.default, (list, tuple)) else option.default
        generated = re.search(r"\[(.*)\]$", getattr(option, "help", None) or "")
        if generated:
            default = generated[1]
        elif not isinstance(option, click.Option) or not option.show_default or isinstance(default, bool):
            continue
        row = next(row for row in rows(name) if re.search(rf"`{option.opts[-1]}[ `]", row[0]))
        assert row[1].strip("`") == str(default)


@pytest.mark.parametrize("name", EVERY)
def test_every_command_and_option_has_help(name):
    assert command(name).help
    for parameter in command(name).params:
        assert isinstance(parameter, click.Argument) or parameter.help, parameter.name


def test_the_overview_names_every_command():
    overview = (DOCS / "commands.md").read_text("utf-8").split("\n## ")[0]
    assert re.findall(r"^\| \[`(\w+)`\]", overview, re.M) == list(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_shown_on_a_page_exist(page):
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
def test_options_named_in_a_sentence_exist(page):
    if page.name in ("tests.md", "CHANGELOG.md"):
        return  # of pytest; and names that were
    known = {option for name in COMMANDS for option in every_option(command(name))} | {
        *(text for parameter in cli.params for text in parameter.opts),
        "--help",
        "--build-arg",
    }
    for shown in re.findall(r"`(--[a-z][a-z-]*)", FENCE.sub("", page.read_text("utf-8"))):
        assert shown in known, shown


def every_option(found: click.Command) -> set[str]:
    options = {text for parameter in found.params for text in (*parameter.opts, *parameter.secondary_opts)}
    if isinstance(found, click.Group):
        for name in found.list_commands(click.Context(found)):
            inner = found.get_command(click.Context(found), name)
            assert inner is not None
            options |= every_option(inner)
    return options


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


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text("utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_leads_to_every_page():
    assert "docs/index.md" in LINK.findall((ROOT / "README.md").read_text("utf-8"))
    linked = set(LINK.findall((DOCS / "index.md").read_text("utf-8")))
    assert linked >= {page.name for page in DOCS.glob("*.md")} - {"index.md"}


def test_images_exist():
    for page in PAGES:
        for target in re.findall(r"!\[[^\]]*\]\(([^()\s]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"


def test_imports_point_down():
    """As docs/architecture.md lists the layers: a module imports from the lines below its own only."""
    text = (DOCS / "architecture.md").read_text("utf-8")
    layers = next(block for language, block in FENCE.findall(text) if language == "layers").splitlines()
    level = {name: len(layers) - place for place, names in enumerate(layers) for name in names.split()}
    sources = {
        path: path.relative_to(ROOT / "rerank").parts[0].removesuffix(".py") for path in package("rerank")
    }
    sources |= {path: folder for folder in ("cli", "index_templates") for path in package(folder)}
    wrong = []
    for path, unit in sources.items():
        if unit == "__init__":
            continue
        assert unit in level, f"docs/architecture.md puts {unit} in no layer"
        for used in imported(path):
            if used != unit and level[used] >= level[unit]:
                wrong.append(f"{path.relative_to(ROOT)} imports {used}")
    assert not wrong


def package(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Top-level modules and folders of rerank that a file imports, those for type checkers included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rerank."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("rerank.")}
    return found
