"""Write docs/explanation/papers.md: the verdict on each claim of the papers, from the result files.

python benchmarks/papers/page.py            # writes docs/explanation/papers.md and its figures
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
PAGE = ROOT / "docs" / "explanation" / "papers.md"
FIGURES = ROOT / "docs" / "explanation" / "papers"
TOLD = {"003": told_003.told, "002": told_002.told, "000": told_000.told}

_HEAD = """# The papers, claim by claim

This page compares the claims of three papers with results on the collections of this project.
`python benchmarks/papers/page.py` makes it from the files in `benchmarks/papers/results/`. Every file has the
command that measured it. The scripts skip steps that have a file.

| verdict | meaning |
| --- | --- |
| **holds** | the difference has the direction of the claim, p < 0.05 |
| **does not hold** | the opposite direction, p < 0.05; or a gain that is below 0.01 (95 % bound) |
| **not decided** | the test shows neither |
| **not tested** | without a p-value; the direction is in brackets |
| **nothing was learned** | no seed kept a training step, so the encoder is the untrained one |
| **no data** | the collection or the method of the paper is not available |
| **not run yet** | the script has the steps; the result is missing |

- **Seeds.** A test is on the mean over seeds. The standard error of one seed follows from its difference and
  its p-value (paired randomization test over queries). The seeds share their queries. Therefore the standard
  error of the mean is at most the mean of the standard errors. This bound is used, so p is rather too large.
- **"Keeps" and "no difference".** The claim holds if the loss is not significant, and below 0.01 with 95 %
  confidence.
- **Several parts.** A claim about all sizes or measures holds if each part holds.
- Counts of a whole collection have no p-value. Verdicts are not corrected for the number of claims.
- A result of one seed is one draw. The row shows the number of seeds.
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
        " [all figures](../../benchmarks/README.md).\n"
    )
    return {PAGE: "\n".join(parts), **figures}


def _claims(claims: Sequence[Claim]) -> str:
    lines = [
        "| claim of the paper | section | verdict | figures | command |",
        "| --- | --- | --- | --- | --- |",
    ]
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
        return f"Steps without a result: `python benchmarks/papers/{name}.py DATA --list`.\n"
    taken = ", ".join(f"{_table_of(table)} {60 * value:.1f}" for table, value in sorted(spent.items()))
    return (
        f"Processor time of these steps on one core of a busy machine, in minutes: {taken}."
        f" Steps without a result: `python benchmarks/papers/{name}.py DATA --list`.\n"
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
