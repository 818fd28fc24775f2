"""Write RESULTS.md with the verdict on each claim of the papers, and the numbers, from the result files.

It also writes the five lines of docs/explanation/results.md, and the gain of categories in README.md and
docs/explanation/rankers.md.

python benchmarks/papers/page.py            # writes the pages
python benchmarks/papers/page.py --check    # exit code 1 if they, or results, are outdated
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2])]

from claims import CENTRAL, CLAIMS, TITLES, Claim
from results import PAPERS, Difference, groups, outdated, p_text, shown, untested

from benchmarks.common.pages import ROOT, filled, markdown_table, page_options, update
from rerank.evaluation.significance import holm

PAGE = Path(__file__).parent / "RESULTS.md"
SUMMARY = ROOT / "docs" / "explanation" / "results.md"
RANKERS = ROOT / "docs" / "explanation" / "rankers.md"

_HEAD = """# The papers: claims and numbers

`python benchmarks/papers/page.py` generates this page from `benchmarks/papers/claims.py` and the files in
`benchmarks/papers/results/`. Each line of these files has the command of a result. Removed scripts and
options are in its commit.

| verdict | meaning |
| --- | --- |
| **holds** | the difference has the direction of the claim, p < 0.05 |
| **does not hold** | the opposite direction, p < 0.05 |
| **no gain above 0.01 shown** | a gain above 0.01 is excluded with 95 % confidence |
| **not decided** | the test shows neither |
| **not tested** | without a p-value; the direction is in brackets |
| **not run** | no run can decide it |
| **no data** | the collection or the method is not available, or the claim follows from how data were made |

- Each claim has one measure. p: paired randomization test over queries, on the mean over seeds, with Holm's
  correction over all {tests} tests of this page.
- A standard error over seeds is at most the mean of the standard errors of the seeds, which follow from their
  p-values. Some older results have only an upper bound of p.
- *start*: the encoder before the training. MiniLM (`all-MiniLM-L6-v2`) is pretrained also on citations: its
  model card lists 116 million pairs of abstracts and 53 million pairs of titles from S2ORC's citations, and
  SPECTER's 684,100 triplets. Papers 000 and 001 teach this signal, so they need a start with random weights.
- Each result has date, commit and machine; for older ones the machine is unknown. A check fails if the
  default options of a family have changed since a result, unless the result says why it stays (*older*).
"""

HIDDEN = ("best ", "sum ", "top-1", "recall")
"""Starts of names of measures that only the result files have."""


def tested(paper: str, claim: Claim) -> tuple[Difference, list[float]] | None:
    """Return the difference of a claim and the values of both systems; None without results."""
    group = groups(paper).get(claim.test)
    measures = [claim.measure] if isinstance(claim.measure, str) else list(claim.measure)
    if group is None:
        return None
    found = [group.difference(*claim.systems, measure) for measure in measures]
    values = group.common_means(claim.systems, measures[-1])
    first, last = found[0], found[-1]
    if first is None or last is None:
        return None
    if len(found) == 2:
        return Difference(last.mean - first.mean, None), [first.mean, last.mean]
    return (-last if claim.rule == "below" else last), values


def corrected() -> dict[tuple[str, int], float]:
    """Return (paper, position of the claim) -> p-value after Holm's correction over all claims."""
    raw = {}
    for paper in PAPERS:
        for number, claim in enumerate(CLAIMS[paper]):
            found = None if claim.verdict else tested(paper, claim)
            if found and found[0].p is not None:
                raw[paper, number] = found[0].p
    return dict(zip(raw, holm(list(raw.values()))))


def judged(paper: str, claim: Claim, p: float | None) -> tuple[str, str]:
    """Return the verdict on a claim and its figures."""
    if claim.verdict:
        return claim.verdict, claim.reason
    found = tested(paper, claim)
    if found is None:
        return "not run", "no result"
    difference, values = found
    group = groups(paper)[claim.test]
    table, collection, setting = claim.test
    where = f"{collection}, {table}, {setting}"
    if not isinstance(claim.measure, str):
        first, last = claim.measure
        gains = f"{values[0]:+.4f} ({first}), {values[1]:+.4f} ({last})"
        return untested(difference.mean > 0), f"{where}: {' - '.join(claim.systems)}: {gains}"
    verdict = difference.equal(p) if claim.rule == "equal" else difference.above(p)
    sides = ", ".join(f"{name} {value:.4f}" for name, value in zip(claim.systems, values))
    text = "" if p is None else f"; p {p_text(p)}"
    seeds = min(group.seeds(name, claim.measure) for name in claim.systems)
    counted = "one run" if seeds == 1 else f"{seeds} seeds"
    return verdict, f"{where}, {claim.measure}: {sides}{text}; {counted}"


def page() -> str:
    p = corrected()
    parts = [_HEAD.format(tests=len(p))]
    for paper in PAPERS:
        rows: list[list[str]] = []
        for number, claim in enumerate(CLAIMS[paper]):
            verdict, figures = judged(paper, claim, p.get((paper, number)))
            rows.append([claim.text, claim.section, f"**{verdict}**", figures])
        table = markdown_table(["claim", "section", "verdict", "figures"], rows)
        parts.append(f"## {TITLES[paper]}\n\n{table}\n")
    parts.append("# Numbers\n\nMean ± standard deviation over seeds.\n")
    for paper in PAPERS:
        parts += _numbers(paper)
    return "\n".join(parts)


def _numbers(paper: str) -> list[str]:
    """Return one table per kind of measurement and collection."""
    found = groups(paper)
    tables = []
    for table, collection in dict.fromkeys((table, collection) for table, collection, _ in found):
        by_setting = {key[2]: group for key, group in found.items() if key[:2] == (table, collection)}
        names = dict.fromkeys(name for group in by_setting.values() for name in group.measures)
        measures = [name for name in names if not name.startswith(HIDDEN)]
        rows: list[list[str]] = []
        origins = []
        for setting, group in by_setting.items():
            origins.append(f"- {setting}: {group.origin()}. `{group.command()}`")
            for system in group.systems:
                cells = [shown(group.values(system, measure)) for measure in measures]
                rows.append([setting, system, *cells, str(group.seeds(system, *measures))])
        numbers = markdown_table(["setting", "system", *measures, "seeds"], rows)
        tables.append("\n".join([f"## {paper}, {collection}: {table}\n", numbers, "", *origins]) + "\n")
    return tables


def central() -> str:
    """Return the table with one line per paper."""
    p = corrected()
    rows: list[list[str]] = []
    for paper, (text, claim, limit) in CENTRAL.items():
        comparisons = [_comparison(other) for other in CLAIMS[paper]]
        verdict, figures = judged(paper, claim, p.get((paper, comparisons.index(_comparison(claim)))))
        rows.append([paper, text, figures, f"**{verdict}**", limit])
    return markdown_table(["paper", "central claim", "a fair test", "verdict", "limit"], rows)


def _comparison(claim: Claim) -> tuple[object, ...]:
    return claim.test, claim.systems, claim.measure


def gains_of_categories() -> str:
    """Return the gain of ``meta`` by the categories of the query, for README.md and the page on rankers."""
    gains: dict[str, list[str]] = {}
    for case in ("given", "inferred", "degraded"):
        for collection in ("wikispeedia", "debian.it"):
            group = groups("003")["retrieved", collection, f"cosine head, categories {case}"]
            difference = group.difference("tfidf,text,meta", "tfidf,text", "NDCG, 1,000")
            assert difference is not None
            gains.setdefault(case, []).append(f"{difference.mean:.3f}")
    given, inferred, degraded = (" and ".join(of) for of in gains.values())
    return (
        f"On wikispeedia and debian.it, given categories add {given} nDCG, inferred ones {inferred},"
        f" categories with errors {degraded}"
    )


def pages() -> Mapping[Path, str]:
    gains = {"categories": gains_of_categories()}
    filled_pages = {path: filled(path, gains) for path in (RANKERS, ROOT / "README.md")}
    return {PAGE: page(), SUMMARY: filled(SUMMARY, {"five": central()}), **filled_pages}


def main() -> int:
    check = page_options(__doc__).parse_args().check
    problems = [line for paper in PAPERS for line in outdated(paper)] if check else []
    print(*problems, sep="\n", end="\n" if problems else "")
    return int(update(pages(), "benchmarks/papers/page.py", check=check) or bool(problems))


if __name__ == "__main__":
    sys.exit(main())
