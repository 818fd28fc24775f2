"""The claims of Ding, Zhang, Chen, Cao (CCHT)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

from running import results
from tables import Claim, Paper, Table, mean, p_text, shown
from verdicts import NO_DATA, Difference, all_of, difference, untested

LEVELS = ("MAP sentence", "MAP paragraph", "MAP section")
NEAR = ("sentence > paragraph", "section > document")
TESTED = (*LEVELS, *NEAR)
NAMES = {
    "direct": "direct citations (SPECTER)",
    "sentence": "Sentence",
    "paragraph": "Paragraph",
    "section": "Section",
    "hard 1.0": "Sentence, all negatives hard",
    "contrastive": "Sentence, contrastive",
    "specter": "direct citations, two of five negatives hard (SPECTER)",
    "preset": "Sentence, `--preset cocitation`",
    "untrained cls": "untrained, vector of the first token",
}
HARD = ("sentence", "hard 0.2", "hard 0.4", "hard 0.6", "hard 0.8", "hard 1.0")

Step = Mapping[str, Any]


class Run:
    """The results of one encoder."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.rows = {row["how"]: row for row in step["rows"]}

    def value(self, how: str, measure: str) -> float:
        """Return the mean over the seeds."""
        return mean(self.rows[how]["measures"][measure])

    def difference(self, how: str, than: str, measure: str) -> Difference:
        """Return the difference of two strategies. The test is on the means over the seeds."""
        for sign, pair in ((1, (how, than)), (-1, (than, how))):
            for test in self.step["tests"]:
                if (test["above"], test["than"], test["measure"]) == (*pair, measure):
                    return difference([sign * test["delta"]], [test["p"]])
        delta = self.value(how, measure) - self.value(than, measure)
        # Results with Holm's correction contain only p-values below 0.05.
        return Difference(delta, inf if measure in TESTED and "corrected" in self.step else None)

    def has(self, *hows: str) -> bool:
        """Return whether all strategies in ``hows`` were measured."""
        return {*hows} <= {*self.rows}

    @property
    def where(self) -> str:
        """Return collection and encoder as text."""
        return f"{self.step['collection']}, {self.step['start']}"

    def seeds(self, *hows: str) -> str:
        """Return the smallest number of seeds as text."""
        least = min(self.rows[how]["seeds"] for how in hows)
        return "one seed" if least == 1 else f"{least} seeds"


def _gap(gap: Difference) -> str:
    if gap.error is None:
        return f"{gap.mean:+.3f} (not tested)"
    return f"{gap.mean:+.3f} ({'p above 0.05' if gap.error == inf else f'p {p_text(gap.p or 0.0)}'})"


def _above(
    says: str, where: str, runs: Iterable[Run], pairs: Sequence[tuple[str, str]], measures: Sequence[str]
) -> list[Claim]:
    """Return one claim per encoder and pair: the first strategy is above the second."""
    claims: list[Claim] = []
    for run in runs:
        for how, than in pairs:
            if run.has(how, than):
                gaps = {measure: run.difference(how, than, measure) for measure in measures}
                figures = ", ".join(map(_gap, gaps.values()))
                claims.append(
                    Claim(
                        "the same" if claims else says,
                        where,
                        all_of(gap.above() for gap in gaps.values()),
                        f"{run.where}: {how} above {than}: MAP {figures}; {run.seeds(how)}",
                        run.step["command"],
                    )
                )
    return claims


def _falls(run: Run) -> list[Claim]:
    """Return the claim that each additional hard negative lowers the measure."""
    there = [how for how in HARD if run.has(how)]
    if len(there) < 3:
        return []
    values = [run.value(how, LEVELS[0]) for how in there]
    last = run.difference("sentence", there[-1], LEVELS[0])
    falling = all(a >= b for a, b in pairwise(values))
    figures = ", ".join(f"{value:.3f}" for value in values)
    return [
        Claim(
            "The mean falls with each hard negative",
            "4.3, figure 3",
            untested(falling),
            f"{run.where}, 0 to 5 of 5: MAP sentence {figures}; none above five by {_gap(last)}",
            run.step["command"],
        )
    ]


def _subjects(run: Run) -> list[Claim]:
    gap = run.difference("direct", "sentence", "subjects")
    values = [run.value(how, "subjects") for how in ("direct", "sentence")]
    return [
        Claim(
            "SPECTER is the best in one classification of two (MAG)",
            "4.1, 4.2",
            gap.above(),
            f"{run.where}: macro-F1 of 14 subjects, direct {values[0]:.3f}, Sentence {values[1]:.3f}",
            run.step["command"],
        )
    ]


def _cases(claims: Iterable[Claim]) -> list[Claim]:
    """Return the claims as cases of the first claim, one case per encoder."""
    return [replace(one, says="the same") if number else one for number, one in enumerate(claims)]


def _table(run: Run) -> Table:
    measures = (*LEVELS, "subjects")
    rows = [
        [NAMES.get(how, how), *(shown(row["measures"][name], 3) for name in measures)]
        for how, row in run.rows.items()
        if how not in HARD[1:-1]
    ]
    return Table(f"Strategies, {run.where}", ["", *measures], rows, run.step["note"])


def paper() -> Paper:
    """Return claims and tables from the existing results."""
    steps = results("001")
    runs = [Run(step) for step in steps]
    runs.sort(key=lambda run: "corrected" not in run.step)
    ours = ("sentence", "paragraph", "section")
    return Paper(
        "001: co-citation hierarchies",
        "H. Ding, J. Zhang, J. Chen, G. Cao: CCHT (in Chinese). How the code differs:"
        " [co-citation](cocitation.md#differences-to-the-paper). The paper measures encoders by SciDocs;"
        " here an encoder looks for five references that test articles cite with the query, among 30."
        " The encoder with 24 tokens learned from titles; the others also from abstracts, and their negatives"
        " are references of test articles.",
        [
            *_above(
                "Co-citation teaches the encoder (above the untrained one)",
                "4.1, table 1",
                runs,
                [(how, "untrained") for how in ours],
                LEVELS,
            ),
            *_above(
                "Each strategy is above direct citations (SPECTER)",
                "4.2, table 2",
                runs,
                [(how, "direct") for how in ours],
                LEVELS,
            ),
            *_above(
                "and above them with SPECTER's hard negatives",
                "4.2, table 2",
                runs,
                [(how, "specter") for how in ours],
                LEVELS,
            ),
            *_above("Hard negatives improve direct citations (not in the paper)", "", runs,
                    [("specter", "direct")], LEVELS),
            *_above("The paper's settings (`--preset cocitation`, 40 of 2,004 steps) teach the encoder",
                    "3.4, 4.1", runs, [("preset", "untrained cls")], LEVELS),
            *_above("They are above the untrained mean of tokens (not in the paper)", "", runs,
                    [("preset", "untrained")], LEVELS),
            *_above(
                "Sentence is above Paragraph, and Paragraph above Section",
                "4.2, table 2",
                runs,
                [("sentence", "paragraph"), ("paragraph", "section"), ("sentence", "section")],
                LEVELS,
            ),
            *_above("No hard negatives are better than five of five", "4.3, figure 3", runs,
                    [("sentence", "hard 1.0")], LEVELS),
            *_cases(claim for run in runs for claim in _falls(run)),
            *_cases(claim for run in runs if run.has("direct", "sentence") for claim in _subjects(run)),
            *_above("The contrastive loss on the same pairs is above the triplets", "not in the paper", runs,
                    [("contrastive", "sentence")], LEVELS),
            Claim("Above SPECTER, SciBERT and nine others on SciDocs", "4.1, table 1", NO_DATA,
                  "neither the collections nor those models are available"),
        ],
        [_table(run) for run in runs],
        results=steps,
    )  # fmt: skip
