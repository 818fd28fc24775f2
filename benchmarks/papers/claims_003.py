"""The claims of Kuwa, Schamoni, Riezler (2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from running import results
from tables import Claim, Paper, Table, chart, mean, p_text, shown
from verdicts import FAILS, HOLDS, NO_DATA, NOT_RUN, UNDECIDED, Difference, all_of, difference, untested

COUNTS = (40, 200, 400, 1000)
FIRST, STACKED = "tfidf", "text,meta"
THEIRS: dict[str, dict[str, dict[str, tuple[float | None, ...]]]] = {
    "pool-random": {
        "Wikipedia En-De": {
            "meta": (72.0, 54.8, None, 38.1),
            "text": (90.4, 80.2, None, 64.5),
            "joint": (90.8, 81.3, None, 66.4),
        },
        "patents Ja-En": {
            "meta": (80.9, 68.4, 62.3, 53.1),
            "text": (92.6, 85.1, 80.1, 71.9),
            "joint": (92.8, 85.9, 81.3, 73.2),
            STACKED: (93.6, 88.2, 84.4, 77.5),
        },
    },
    "pool-first": {
        "patents Ja-En": {
            FIRST: (61.9, 56.3, 55.0, 53.9),
            "meta": (63.6, 47.1, 41.3, 35.1),
            "text": (66.5, 52.0, 46.8, 41.1),
            STACKED: (69.8, 55.9, 50.9, 45.5),
            f"{FIRST},meta": (64.2, 58.4, 57.1, 56.1),
            f"{FIRST},text": (66.8, 60.0, 58.6, 57.4),
            f"{FIRST},{STACKED}": (69.8, 61.9, 60.5, 59.2),
        },
    },
}
"""Averages of tables 2 to 4 of the paper, as NDCG times 100."""
NAMES = {
    FIRST: "tf-idf",
    "text": "text only",
    "meta": "meta only",
    "joint": "joint",
    STACKED: "stacked (text + meta)",
    f"{FIRST},text": "tf-idf + text",
    f"{FIRST},meta": "tf-idf + meta",
    f"{FIRST},joint": "tf-idf + joint",
    f"{FIRST},{STACKED}": "tf-idf + text + meta",
}
WHAT = {"cosine": "cosine head", "mlp": "MLP head", "paper": "`--preset paper`"}
CASES = ("given", "inferred", "degraded")
"""Categories of the query. See 003.py."""
WHAT |= {f"{name}@1000": f"{text}, weights of 1,000" for name, text in WHAT.items()}


NOTES = {
    "retrieved": "*Weights of 1,000*: tuned on dev at 1,000 candidates and used at every number of"
    " them; rows without tf-idf"
    " have the others unchanged. There p against tf-idf + text is not corrected for being several."
}


class Runs:
    """The results of one protocol, collection and setting, by number of documents and seed."""

    def __init__(self, steps: Sequence[Mapping[str, Any]]) -> None:
        self.steps = steps

    def values(self, count: int, stack: str) -> list[float]:
        """Return NDCG of each seed."""
        found = []
        for step in self.steps:
            row = step["counts"].get(str(count), {}).get("rows", {}).get(stack)
            if row is not None:
                found.append(row["nDCG"])
        return found

    def text(self, count: int, stack: str) -> str:
        """Return mean and standard deviation over the seeds, as text."""
        for step in self.steps:  # results entered by hand contain a mean
            row = step["counts"].get(str(count), {}).get("rows", {}).get(stack, {})
            if "sd" in row:
                return f"{row['nDCG']:.4f} ± {row['sd']:.4f}"
        return shown(self.values(count, stack))

    @property
    def seeds(self) -> int:
        """Return the number of seeds. A seed can have one step per number of documents."""
        there = [step for step in self.steps if step["counts"]]
        return sum(step.get("seeds", 0) for step in there) + len(
            {step.get("seed") for step in there if "seeds" not in step}
        )

    def difference(self, count: int, stack: str, against: str) -> Difference:
        """Return the difference of two stacks over the seeds. Some results have only an upper bound of p."""
        deltas, ps = [], []
        for step in self.steps:
            found = step["counts"].get(str(count), {})
            rows = found.get("rows", {})
            if stack in rows and against in rows:
                deltas.append(rows[stack]["nDCG"] - rows[against]["nDCG"])
                pair = (stack, against)
                tests = [one for one in found["tests"] if (one["stack"], one["against"]) == pair]
                ps.append(max((one.get("p", one.get("p_below")) for one in tests), default=None))
        return difference(deltas, ps)

    def counts(self, *stacks: str) -> list[int]:
        """Return the numbers of documents at which all of these stacks were measured."""
        there = sorted({int(count) for step in self.steps for count in step["counts"]})
        return [count for count in there if all(self.values(count, stack) for stack in stacks)]

    @property
    def command(self) -> str:
        """Return the command of the last step. It covers all seeds."""
        return str(self.steps[-1]["command"])

    def against(self, stack: str, other: str) -> dict[int, Difference]:
        """Return number of documents -> difference of two stacks."""
        return {count: self.difference(count, stack, other) for count in self.counts(stack, other)}


def _runs() -> dict[tuple[str, str, str], Runs]:
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    steps = [step for step in results("003") if "counts" in step and "categories" not in step]
    whole = {_run(step) for step in steps if "rankers" not in step}
    for step in steps:
        if "rankers" not in step or _run(step) not in whole:
            found.setdefault((step["kind"], step["collection"], step["setting"]), []).append(step)
    return {key: Runs(steps) for key, steps in found.items()}


def _cases(steps: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], Runs]:
    """Return the results by categories of the query, for all grades and for grade 1 only."""
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for step in steps:
        if "categories" in step:
            key, name = (step["kind"], step["collection"]), f"{step['setting']}, {step['categories']}"
            found.setdefault((*key, name), []).append(step)
            lower = {
                count: {
                    "rows": {stack: {"nDCG": value} for stack, value in of["grade 1"]["values"].items()},
                    "tests": of["grade 1"]["tests"],
                }
                for count, of in step["counts"].items()
            }
            found.setdefault((*key, f"{name}, grade 1"), []).append({**step, "counts": lower})
    return {key: Runs(steps) for key, steps in found.items()}


def _run(step: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key of a run. A run with all rankers replaces a partial run with the same key."""
    return step["kind"], step["collection"], step["setting"], step.get("seed")


def _where(key: tuple[str, str, str]) -> str:
    setting, *case = key[2].split(", ")
    return ", ".join([key[1], WHAT[setting], *(f"categories {one}" if one in CASES else one for one in case)])


def _compared(
    runs: Mapping[tuple[str, str, str], Runs], kinds: Sequence[str], pair: tuple[str, str]
) -> list[Any]:
    found = []
    for key, run in runs.items():
        if key[0] in kinds:
            gaps = run.against(*pair)
            if gaps:
                found.append((key, run, gaps))
    return found


def _deltas(gaps: Mapping[int, Difference]) -> str:
    """Return the differences at the smallest and the largest number of documents, as text."""
    parts = [
        f"{n:,}: {gap.mean:+.4f}" + (f" (p {p_text(gap.p)})" if gap.p is not None else "")
        for n, gap in ((n, gaps[n]) for n in sorted({min(gaps), max(gaps)}))
    ]
    return "; ".join(parts)


def _each(says: str, where: str, found: Sequence[Any], judge: Any, runs_of: str = "") -> list[Claim]:
    """Return one claim per collection and setting. ``judge`` returns the verdict on the differences."""
    if not found:
        return [Claim(says, where, NOT_RUN, runs_of)]
    claims = []
    for number, (key, run, gaps) in enumerate(found):
        figures = f"{_where(key)}, {key[0]}: {_deltas(gaps)}"
        if run.seeds == 1:
            figures += "; one seed"
        claims.append(Claim(says if not number else "the same", where, judge(gaps), figures, run.command))
    return claims


Gaps = Mapping[int, Difference]
"""Number of documents -> difference."""


def _all_above(gaps: Gaps) -> str:
    return all_of(gap.above() for gap in gaps.values())


def _all_below(gaps: Gaps) -> str:
    return all_of(gap.below() for gap in gaps.values())


def _grows(gaps: Gaps) -> str:
    """Return the verdict on growth with every step to more documents. The steps have no p-values."""
    if len(gaps) < 2:
        return NOT_RUN
    return untested(all(a.mean < b.mean for a, b in pairwise(gaps.values())))


def _falls(gaps: Gaps) -> str:
    """Return the verdict on a fall with every step to more documents, to below 0 at the last step."""
    *_, last = gaps.values()
    found = last.below()
    if found == HOLDS and len(gaps) < 2:
        return NOT_RUN
    falling = all(a.mean > b.mean for a, b in pairwise(gaps.values()))
    return UNDECIDED if found == HOLDS and not falling else found


def claims(runs: Mapping[tuple[str, str, str], Runs], steps: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Return all claims of the paper."""
    random, first = ["pool-random"], ["pool-first", "retrieved"]
    full = f"{FIRST},{STACKED}"
    found = [
        *_overlaps(steps),
        *_each(
            "Text and categories in one model (joint) are above text only, among random documents",
            "5.2, tables 2 and 3",
            _compared(runs, random, ("joint", "text")),
            _all_above,
        ),
        *_each(
            "and the gain grows with the number of documents",
            "5.2",
            _compared(runs, random, ("joint", "text")),
            _grows,
        ),
        *_each(
            "Categories only are far below text only",
            "tables 2 and 3",
            _compared(runs, random, ("meta", "text")),
            _all_below,
        ),
        *_each(
            "Stacking the scores of text and meta is above text only, among random documents",
            "5.4.1, table 3",
            _compared(runs, random, (STACKED, "text")),
            _all_above,
        ),
        *_each(
            "Stacking the scores of text and meta is above joint (patents; on Wikipedia, little changes)",
            "5.4.1, table 3",
            _compared(runs, random, (STACKED, "joint")),
            _all_above,
        ),
        *_each(
            "Plain reranking of tf-idf's documents falls below tf-idf as their number grows",
            "5.4.2, table 4, figure 3a",
            _compared(runs, first, (STACKED, FIRST)),
            _falls,
        ),
        *_each(
            "Weighted reranking is above tf-idf at every number of documents",
            "5.4.2, table 4, figure 3b",
            _compared(runs, first, (full, FIRST)),
            _all_above,
        ),
        *_each(
            "Weighted with tf-idf, text and meta are above text",
            "table 4",
            _compared(runs, first, (full, f"{FIRST},text")),
            _all_above,
        ),
        *_each(
            "Weighted with tf-idf, stacked is above joint (its conclusion)",
            "6",
            _compared(runs, first, (full, f"{FIRST},joint")),
            _all_above,
        ),
        Claim("The same on Japanese patents and on Wikipedia in three languages", "4", NO_DATA,
              "neither collection is available"),
        *_translations(steps),
    ]  # fmt: skip
    return found


def _translations(steps: Sequence[Mapping[str, Any]]) -> list[Claim]:
    says = "tf-idf is strong if it searches with a translation of the query"
    measured = [step for step in steps if "translation" in step]
    if not measured:
        return [
            Claim(says, "5.3, 5.4.2", NOT_RUN, "`003.py --collections debian.it+translated` has the steps")
        ]
    claims = []
    for step in measured:
        before, after = (step["translation"][name] for name in ("as it is", "translated"))
        claims.append(
            Claim(
                "the same" if claims else says,
                "5.3, 5.4.2",
                difference([after["nDCG"] - before["nDCG"]], [step["p"]]).above(),
                f"{step['collection'].partition('+')[0]}, {step['queries']:,} test queries, translated"
                f" word by word"
                f" with the training pairs: tf-idf's NDCG {before['nDCG']:.4f} to {after['nDCG']:.4f}"
                f" (p {p_text(step['p'])}), candidate recall {before['recall']:.4f} to {after['recall']:.4f}",
                step["command"],
            )
        )
    return claims


def _overlaps(steps: Sequence[Mapping[str, Any]]) -> list[Claim]:
    says = "For over 70 % of the pairs, query and relevant document share no category"
    wanted = "Highly relevant documents share more than the others"
    where = "4.1.2, figure 2"
    measured = [step for step in steps if "overlap" in step]
    if not measured:
        return [Claim(says, where), Claim(wanted, where)]
    claims = []
    for number, step in enumerate(measured):
        whole = step["overlap"][0]
        share = whole["buckets"][0]["share"]
        claims.append(
            Claim(
                says if not number else "the same",
                where,
                HOLDS if share > 0.7 else FAILS,
                f"{step['collection']}: {100 * share:.1f} % of {whole['pairs']:,} pairs",
                step["command"],
            )
        )
    for number, step in enumerate(one for one in measured if len(one["overlap"]) > 2):
        highest, lowest = step["overlap"][1], step["overlap"][-1]
        of = [100 * one["buckets"][0]["share"] for one in (highest, lowest)]
        claims.append(
            Claim(
                wanted if not number else "the same",
                where,
                HOLDS if of[0] < of[1] else FAILS,
                f"{step['collection']}: none shared by {of[0]:.1f} % of grade {highest['grade']},"
                f" {of[1]:.1f} % of"
                f" grade {lowest['grade']}",
                step["command"],
            )
        )
    return claims


def _tables(runs: Mapping[tuple[str, str, str], Runs]) -> list[Table]:
    made = []
    titles = {
        "pool-random": "Tables 2 and 3: all relevant and N random documents, NDCG",
        "pool-first": "Table 4: all relevant and tf-idf's N best irrelevant documents, NDCG",
        "retrieved": "What tf-idf finds, at most N documents, NDCG (not in the paper)",
    }
    for kind, title in titles.items():
        there = {n for key, run in runs.items() if key[0] == kind for n in run.counts()}
        counts = sorted(there | {*(COUNTS if kind in THEIRS else ())})
        rows = []
        for source, lines in THEIRS.get(kind, {}).items():
            for stack, values in lines.items():
                cells = list(map(_published, values))
                rows.append([f"*{source}, the paper*", NAMES[stack], *cells])
        for key, run in runs.items():
            for stack in NAMES if key[0] == kind else ():
                cells = [run.text(n, stack) for n in counts]
                if any(cells):
                    rows.append([_where(key), NAMES[stack], *cells])
        made.append(Table(title, ["", "", *(f"N = {n:,}" for n in counts)], rows, NOTES.get(kind, "")))
    return made


def _published(percent: float | None) -> str:
    return "" if percent is None else f"{percent / 100:.3f}"


def _largest(runs: Mapping[tuple[str, str, str], Runs], count: int = 1000) -> Table:
    """Return tables 2 and 3 at ``count`` documents, one row per collection and setting."""
    stacks = ("text", "meta", "joint", STACKED)
    rows = [
        [f"*{source}, the paper*", *(_published(of[stack][-1]) if stack in of else "" for stack in stacks)]
        for source, of in THEIRS["pool-random"].items()
    ]
    for key, run in runs.items():
        if key[0] == "pool-random":
            rows.append([_where(key), *(run.text(count, stack) for stack in stacks)])
    title = f"Tables 2 and 3: all relevant and {count:,} random documents, NDCG"
    return Table(title, ["", *(NAMES[stack] for stack in stacks)], rows)


def gains_of_categories() -> str:
    """Return what ``meta`` adds to tf-idf and ``text``, by the categories of the query, as a sentence."""
    cases = _cases(results("003"))
    stacks = 1000, f"{FIRST},{STACKED}", f"{FIRST},text"
    gains = {
        (collection, case): cases["retrieved", collection, f"cosine, {case}"].difference(*stacks).mean
        for collection in ("wikispeedia", "debian.it")
        for case in CASES
    }
    given, inferred, degraded = (
        f"{gains['wikispeedia', case]:.3f} and {gains['debian.it', case]:.3f}" for case in CASES
    )
    return (
        f"On wikispeedia and debian.it, given categories add {given} nDCG, inferred ones {inferred},"
        f" categories with errors {degraded}"
    )


def _by_case(cases: Mapping[tuple[str, str, str], Runs], count: int = 1000) -> list[Table]:
    """Return one table per collection and setting. Columns: categories of the query."""
    found = sorted({(collection, setting.split(", ")[0]) for _, collection, setting in cases})
    tables = []
    for collection, setting in found:
        columns = [f"{case}{grade}" for grade in ("", ", grade 1") for case in CASES]
        rows = []
        for kind in THEIRS | {"retrieved": {}}:
            plain = kind == "pool-random"
            for stack in (
                ("text", "meta", STACKED) if plain else (FIRST, f"{FIRST},text", f"{FIRST},{STACKED}")
            ):
                at = [cases.get((kind, collection, f"{setting}, {column}")) for column in columns]
                cells = [run.text(count, stack) if run else "" for run in at]
                rows.append([kind, NAMES[stack], *cells])
        seeds = max(run.seeds for key, run in cases.items() if key[1] == collection)
        note = (
            f"{count:,} documents, seeds: {seeds}. *Given*: the categories of the document of grade 2."
            " *Inferred*: from the first candidates. *Degraded*: each category is dropped with probability"
            " 0.5 and replaced by a sibling with 0.25. *Grade 1*: without the document of grade 2. Weights"
            " are tuned on dev queries of the same case."
        )
        where = f"{collection}, {WHAT[setting]}"
        tables.append(Table(f"Categories of the query, {where}, NDCG", ["", "", *columns], rows, note))
    return tables


def _trainings(steps: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return a table of the training steps: epochs, dev NDCG and time."""
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for step in steps:
        if step["table"] == "training":
            found.setdefault((step["collection"], step["setting"], step["ranker"]), []).append(step)
    rows = [
        [
            _where(("", *key[:2])),
            key[2],
            ", ".join(f"{one['epoch']} of {one['epochs']}" for one in of),
            shown([one["dev"] for one in of]),
            shown([60 * one["cpu_hours"] for one in of], 1),
        ]
        for key, of in found.items()
    ]
    head = ["", "ranker", "epoch kept, each seed", "dev NDCG", "minutes of one core"]
    note = (
        "Times include word vectors and category walks. Dev NDCG is weighted with tf-idf; with"
        " `--preset paper` it is of the ranker only, among random documents, as in the paper. The machine was"
        " busy."
    )
    return [Table("Training", head, rows, note)] if rows else []


def _figures(runs: Mapping[tuple[str, str, str], Runs]) -> dict[str, tuple[str, str]]:
    made = {}
    for key, run in runs.items():
        if key[0] != "retrieved" or "@" in key[2]:
            continue
        lines = {}
        for name, stack in (
            ("tf-idf", FIRST),
            ("tf-idf + text", f"{FIRST},text"),
            ("tf-idf + text + meta", f"{FIRST},{STACKED}"),
            ("text, rerank only", "text"),
            ("text + meta, rerank only", STACKED),
        ):
            counts = run.counts(stack)
            if len(counts) > 1:
                lines[name] = {n: mean(run.values(n, stack)) for n in counts}
        if lines:
            file = f"candidates-{key[1].replace('.', '-')}-{key[2]}.svg"
            caption = f"Figure 3: {_where(key).replace('`', '')}"
            made[file] = caption, chart(lines, f"NDCG on test, {_where(key).replace('`', '')}")
    return made


def paper() -> Paper:
    """Return claims, tables and figures from the existing results."""
    steps, runs = results("003"), _runs()
    cases = _cases(steps)
    by_case = _by_case(cases)
    return Paper(
        "003: text and meta-categories",
        "T. Kuwa, S. Schamoni, S. Riezler: Embedding Meta-Textual Information for Improved Learning to"
        " Rank. COLING"
        " 2020. How the code differs: [rankers](rankers.md#differences-to-the-paper)."
        " **Limit:** the categories of a query come from its document of grade 2. They are the same in all"
        " 4,598 pairs of wikispeedia, and a part of them in all 30,963 of debian. In the paper 43 % of such"
        " pairs share none (section 4.1.2). So `meta` and `joint` have an easier task here.",
        claims({**runs, **{key: run for key, run in cases.items() if "given" not in key[2]}}, steps),
        [*by_case, *_tables({**runs, **cases}), *_trainings(steps)],
        _figures(runs),
        steps,
        [*by_case, _largest(runs)],
    )
