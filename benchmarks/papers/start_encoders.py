"""Start encoders, and the values per query that tests of several trainings share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rerank.evaluation.significance import randomization_test
from rerank.rankers.encoder.transformer import TextEncoder

START = "start"
"""The system without a training."""

Values = dict[str, NDArray[np.float64]]
"""Measure -> one value per query."""


def encoder(start: str, tokens: int, seed: int) -> tuple[TextEncoder, dict[str, object]]:
    """Load a start, ``MODEL:LAYERS`` with optional parts; return it with its options.

    ``:topN`` trains the last N layers. ``:random`` has random weights, which know no citations. ``:widthN``
    has random weights in vectors of N numbers, so that a CPU can train all layers.
    """
    model, layers, *rest = start.split(":")
    top = next((int(part.removeprefix("top")) for part in rest if part.startswith("top")), None)
    width = next((int(part.removeprefix("width")) for part in rest if part.startswith("width")), None)
    loaded = TextEncoder.load(model, layers=int(layers), longest=tokens)
    if width is not None:
        shape = loaded.model.config
        shape.hidden_size = width
        shape.intermediate_size = 4 * width
        shape.num_attention_heads = max(1, width // 32)
    if "random" in rest or width is not None:
        torch.manual_seed(seed)
        loaded.model = type(loaded.model)(loaded.model.config).eval()
    return loaded, {"model": model, "train_layers": top or 0, "layers": int(layers)}


def setting_of(start: str) -> str:
    """Return a start in words.

    >>> setting_of("minilm:6:top2"), setting_of("minilm:6:width128")
    ('minilm, 6 layers, top2', 'random weights, 6 layers of width 128')
    """
    model, layers, *rest = start.split(":")
    width = next((part.removeprefix("width") for part in rest if part.startswith("width")), None)
    if width:
        return f"random weights, {layers} layers of width {width}"
    return ", ".join([model, f"{layers} layers", *rest])


@dataclass(frozen=True)
class StoredValues:
    """The values per query of the trainings of one seed, in the work folder.

    label: the collection, the start and the seed.
    """

    folder: Path
    label: str

    def path(self, system: str) -> Path:
        return self.folder / f"{self.label}-{system}.npz".replace(":", "_").replace("+", "-")

    def of(self, system: str, measure: Callable[[], Values]) -> Values:
        """Return the stored values of a system. If there are none, measure and store them."""
        path = self.path(system)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, **measure())  # type: ignore[arg-type]
        return dict(np.load(path))

    def result(self, system: str, values: Values, others: Iterable[str]) -> dict[str, Any]:
        """Return the means of a system and of the start, and the tests against stored systems."""
        stored = {other: dict(np.load(self.path(other))) for other in others if self.path(other).exists()}
        stored.pop(system, None)
        tests: list[list[Any]] = []
        for (other, base), measure in product(stored.items(), values):
            p = randomization_test(values[measure] - base[measure], permutations=10_000)
            tests.append([system, other, measure, p])
        means = {system: _means(values)}
        if START in stored:
            means[START] = _means(stored[START])
        return {"values": means, "tests": tests, "n": {measure: len(values[measure]) for measure in values}}


def _means(values: Values) -> dict[str, float]:
    return {measure: round(float(values[measure].mean()), 4) for measure in values}
