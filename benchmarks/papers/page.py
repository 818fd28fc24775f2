"""Write RESULTS.md with the verdict on each claim of the papers, from the result files.

It also writes the counts of verdicts in docs/explanation/papers.md and the gain of categories in README.md.

python benchmarks/papers/page.py            # writes the pages and the figures
python benchmarks/papers/page.py --check    # exit code 1 if they are outdated
python benchmarks/papers/page.py --show 003  # prints all cases and tables of a paper
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "quality" / "peers")]

import claims_000
import claims_001
import claims_002
import claims_003
import claims_004
from table import filled
from tables import Claim, Table

from rerank.files import write_text

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).parent / "RESULTS.md"
SUMMARY = ROOT / "docs" / "explanation" / "papers.md"
FIGURES = ROOT / "docs" / "explanation" / "papers"
PAPERS = {
    "003": claims_003.paper,
    "002": claims_002.paper,
    "000": claims_000.paper,
    "001": claims_001.paper,
    "004": claims_004.paper,
}

NOT_RUN = (
    (
        "001",
        "the other strategies with title and abstract, six layers",
        "python benchmarks/papers/run_001.py DATA --layers 6 --train-layers 0 --tokens 128 --steps 800"
        " --batch 128 --rate 1e-4 --strategies direct,paragraph,section",
    ),
    (
        "001",
        "two epochs of `--preset cocitation`, six layers",
        "python benchmarks/papers/run_001.py DATA --layers 6 --steps 2004 --strategies preset",
    ),
)
"""Paper, run, and command. All of them need a GPU."""

EXTRA = "(not in the paper)"
"""Mark of claims that only --show prints."""

_HEAD = """# The papers, claim by claim

This page compares the claims of five papers with results on the collections of this project. `python
benchmarks/papers/page.py` generates it from `benchmarks/papers/results/`. Each line of these files has the
command, date and commit of a result. A row shows the number of cases (collection, setting, measure) with each
verdict, and a case of the most frequent one. All cases, tables and sections of a paper: `python
benchmarks/papers/page.py --show 003`.

| verdict | meaning |
| --- | --- |
{verdicts}

- A test is on the mean over seeds. Its standard error is at most the mean of the standard errors of the
  seeds, which follow from their p-values (paired randomization test over queries).
- The margin is 0.01 or, for a measure near 1, a tenth of the distance from the baseline to 1.
- A claim of no loss or no difference holds if none is significant, and it is below the margin with 95 %
  confidence.
- A claim about all sizes or measures holds if each part holds.
- Counts of a whole collection have no p-value. Verdicts are not corrected for the number of claims.
"""


_VERDICTS = {
    "holds": "the difference has the direction of the claim, p < 0.05",
    "does not hold": "the opposite direction, p < 0.05; or a gain below the margin (95 % bound)",
    "not decided": "the test shows neither",
    "not tested": "without a p-value; the direction is in brackets",
    "nothing was learned": "no seed kept a training step",
    "no data": "the collection or the method of the paper is not available",
    "not run yet": "the script has the steps; the result is missing",
}
"""Start of a verdict -> its meaning. The page has the meanings of its own verdicts."""


def pages() -> dict[Path, str]:
    """Return path -> content for all generated files."""
    papers = [paper_of() for paper_of in PAPERS.values()]
    verdicts = {claim.verdict for paper in papers for claim in paper.claims}
    used = {name: text for name, text in _VERDICTS.items() if any(one.startswith(name) for one in verdicts)}
    legend = "\n".join(f"| **{name}** | {text} |" for name, text in used.items())
    parts, figures = [_HEAD.format(verdicts=legend)], {}
    for paper in papers:
        source = paper.source.replace("](", "](../../docs/explanation/")
        parts += [f"## {paper.title}\n", f"{source}\n", _summary(paper.claims)]
        parts += map(_table, paper.page or paper.tables[:1])
        for file, (caption, drawing) in paper.figures.items():
            figures[FIGURES / file] = drawing
            parts.append(f"![{caption}](../../docs/explanation/papers/{file})\n")
    parts += ["## Not run\n\nThese need a GPU.\n", "| paper | run | command |", "| --- | --- | --- |"]
    parts += [f"| {paper} | {run} | `{command}` |" for paper, run, command in NOT_RUN]
    parts.append("")
    readme = filled(ROOT / "README.md", {"categories": claims_003.gains_of_categories()})
    counts = {name: verdict_counts(paper.claims) for name, paper in zip(PAPERS, papers)}
    return {PAGE: "\n".join(parts), SUMMARY: filled(SUMMARY, counts), ROOT / "README.md": readme, **figures}


def verdict_counts(claims: Sequence[Claim]) -> str:
    """Return how many claims of a paper have which most frequent verdict."""
    verdicts: Counter[str] = Counter()
    for cases in groups(claims):
        if EXTRA not in cases[0].says:
            verdict = Counter(case.verdict for case in cases).most_common()[0][0]
            verdicts[verdict.partition(" (")[0]] += 1
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    return f"{sum(verdicts.values())} claims: {counts}"


def groups(claims: Sequence[Claim]) -> list[list[Claim]]:
    """Return the cases, grouped by claim."""
    grouped: list[list[Claim]] = []
    for one in claims:
        if one.says == "the same" and grouped:
            grouped[-1].append(one)
        else:
            grouped.append([one])
    return grouped


def _summary(claims: Sequence[Claim]) -> str:
    """Return a table with one row per claim: verdict counts and a case of the most frequent verdict."""
    lines = ["| claim of the paper | verdict | a case |", "| --- | --- | --- |"]
    for cases in groups(claims):
        if EXTRA in cases[0].says:
            continue
        first = {one.verdict: one.figures for one in reversed(cases)}
        counts = Counter(one.verdict for one in cases).most_common()
        verdicts = ", ".join(f"**{verdict}**" + f" {n}" * (len(cases) > 1) for verdict, n in counts)
        figures = first[counts[0][0]]
        lines.append(f"| {cases[0].says} | {verdicts} | {figures} |")
    return "\n".join(lines) + "\n"


def _claims(claims: Sequence[Claim]) -> str:
    """Return a table with one row per case."""
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


def show(name: str) -> None:
    """Print the tables and claims of one paper."""
    paper = PAPERS[name]()
    print(f"\n{paper.title}\n")
    for table in paper.tables:
        print(_table(table))
    print(_claims(paper.claims))


def main() -> int:
    """Write the page and figures, compare them, or print a paper."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if the files are outdated")
    parser.add_argument("--show", choices=PAPERS, help="print all cases and tables of a paper")
    options = parser.parse_args()
    if options.show:
        show(options.show)
        return 0
    made = pages()
    if options.check:
        other = [path for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
        for path in other:
            print(f"{path.relative_to(ROOT)} is outdated; run benchmarks/papers/page.py")
        return int(bool(other))
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
