"""Makes docs/papers.md of the results: what of each paper holds here.

python benchmarks/papers/page.py            # writes docs/papers.md and its figures
python benchmarks/papers/page.py --check    # exit code 1 where they are not what it would write
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import told_000
import told_002
import told_003
from telling import Claim, Paper, Table

from rerank.files import write_text

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "papers.md"
FIGURES = ROOT / "docs" / "papers"
TOLD = {"003": told_003.told, "002": told_002.told, "000": told_000.told}

_HEAD = """# The papers, claim by claim

What three papers say, and what of it holds on the collections here. Made by
`python benchmarks/papers/page.py` of the files in `benchmarks/papers/results/`, where every figure stands
with its command; the scripts go on with what is not there.

| verdict | |
| --- | --- |
| **holds** | the same direction, and where a p-value is given it is below 0.05 |
| **does not hold** | the other direction, or no more than chance |
| **cannot be tried** | the data are not here |
| **not run yet** | the script has the steps, the figures are not there |

One seed is one draw: where only one was run it says so.
"""


def pages() -> dict[Path, str]:
    """Path -> content of everything that is made."""
    parts, figures = [_HEAD], {}
    for name, told in TOLD.items():
        paper = told()
        parts += [f"## {paper.title}\n", f"{paper.source}\n", _claims(paper.claims)]
        parts += [_table(table) for table in paper.tables]
        for file, (caption, drawing) in paper.figures.items():
            figures[FIGURES / file] = drawing
            parts.append(f"### {caption}\n\n![{caption}](papers/{file})\n")
        parts.append(_steps(name, paper))
    parts.append(
        "See also: [rankers](rankers.md), [dense encoders](dense.md), [co-citation](cocitation.md),"
        " [all figures](../benchmarks/README.md).\n"
    )
    return {PAGE: "\n".join(parts), **figures}


def _claims(claims: Sequence[Claim]) -> str:
    lines = ["| the paper says | where | here | figures | command |", "| --- | --- | --- | --- | --- |"]
    for one in claims:
        command = f"`{one.command}`" if one.command else ""
        lines.append(f"| {one.says} | {one.where} | **{one.verdict}** | {one.figures} | {command} |")
    return "\n".join(lines) + "\n"


def _table(table: Table) -> str:
    lines = [f"### {table.title}\n"]
    if table.note:
        lines.append(f"{table.note}\n")
    lines += [f"| {' | '.join(table.head)} |", f"| {' | '.join(['---'] * len(table.head))} |"]
    lines += [f"| {' | '.join(row)} |" for row in table.rows]
    return "\n".join(lines) + "\n"


def _steps(name: str, paper: Paper) -> str:
    spent: dict[str, float] = {}
    for step in paper.results:
        if "cpu_hours" in step and step.get("device", "cpu") == "cpu":
            spent[step["table"]] = spent.get(step["table"], 0.0) + step["cpu_hours"]
    if not spent:
        return f"What is left to run, step by step: `python benchmarks/papers/{name}.py DATA --list`.\n"
    taken = ", ".join(f"{_table_of(table)} {60 * value:.1f}" for table, value in sorted(spent.items()))
    return (
        "Minutes of one core that the steps behind these figures took, on a busy machine:"
        f" {taken}. What is left to run: `python benchmarks/papers/{name}.py DATA --list`.\n"
    )


def _table_of(step: str) -> str:
    """What a step's table is called: some are numbers."""
    return f"table{'s' * (' and ' in step)} {step}" if step[0].isdigit() else step


def show(name: str) -> None:
    """Print the tables and claims of one paper."""
    paper = TOLD[name]()
    print(f"\n{paper.title}\n")
    for table in paper.tables:
        print(_table(table))
    print(_claims(paper.claims))


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    made = pages()
    if options.check:
        other = [path for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
        for path in other:
            print(f"{path.relative_to(ROOT)} is not what benchmarks/papers/page.py makes; run it")
        return int(bool(other))
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
