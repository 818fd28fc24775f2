"""What an interrupted training of ``s2net`` leaves: the starts it has tried, and how far it came."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from rerank.errors import TrainingError, setting_hint
from rerank.files import parse_json, write_bytes, write_text
from rerank.training.data import TrainingData
from rerank.training.unfinished import ABOUT, STATE, about

Matrix = NDArray[np.floating[Any]]


@dataclass
class Way:
    """Where a training stands.

    tried: starts, with what each reached on dev in its trial. init: the one that it began from, if it has.
    point, best: the matrix now, and the one that was best on dev; None before the first iteration.
    state: counts, measures and the generator, in JSON's values.
    """

    tried: dict[str, float] = field(default_factory=dict)
    init: str | None = None
    point: Matrix | None = None
    best: Matrix | None = None
    state: dict[str, Any] = field(default_factory=dict)


@dataclass
class Best:
    """The best matrix on dev so far, and the way to it: (iteration, loss, dev measure)."""

    matrix: Matrix
    iteration: int
    iterations: int
    measure: float
    first: float
    interrupted: bool = False
    history: list[tuple[int, float | None, float]] = field(default_factory=list)

    @classmethod
    def of(cls, way: Way) -> Best:
        """What was best on a way so far."""
        assert way.best is not None
        state = way.state
        found = cls(way.best, state["iteration"], state["done"], state["measure"], state["first"])
        found.history = [(at, loss, measure) for at, loss, measure in state["history"]]
        return found

    def way(self, way: Way, point: Matrix, done: int, rng: np.random.Generator) -> Way:
        """The way to it, as far as it goes."""
        state = {
            "done": done,
            "iteration": self.iteration,
            "measure": self.measure,
            "first": self.first,
            "history": self.history,
            "generator": rng.bit_generator.state,
        }
        return replace(way, point=point, best=self.matrix, state=state)


class Checkpoint:
    """A folder with the newest :class:`Way`; a crash while writing leaves the one before. None keeps nothing.

    key: what the training is of. settings, of: what it was started with, and its most iterations.
    """

    def __init__(self, folder: Path | None, key: str, settings: Mapping[str, Any], of: int) -> None:
        self.folder, self.key, self.settings, self.of = folder, key, settings, of

    def load(self) -> Way:
        """Return where it stood, or a beginning.

        Raises TrainingError for a checkpoint of another training, or a damaged one.
        """
        if self.folder is None or not (self.folder / STATE).exists():
            return Way()
        restart = setting_hint("restart")
        try:
            record = parse_json((self.folder / STATE).read_text("utf-8"))
            done = record[ABOUT]["done"]
            if record["key"] != self.key:
                raise TrainingError(
                    f"{self.folder}: a training with other settings, queries or documents was interrupted"
                    f" here; repeat its command to go on with it, or add {restart} to drop it"
                )
            way = Way(record["tried"], record["init"], state=record["state"])
            if way.state:
                found = load_file(self.folder / f"way-{done}.safetensors")
                way.point, way.best = found["point"], found["best"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TrainingError(
                f"{self.folder}: the checkpoint cannot be read ({' '.join(str(error).split())[:200]}); add"
                f" {restart} to begin anew"
            ) from error
        return way

    def save(self, way: Way) -> None:
        """Write it; the state comes last and names the other file, then older ones go."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        done = way.state.get("done", 0)
        matrices = self.folder / f"way-{done}.safetensors"
        if way.point is not None and way.best is not None:
            both = {"point": way.point, "best": way.best}
            write_bytes(matrices, save({name: np.ascontiguousarray(one) for name, one in both.items()}))
        told = about("s2net", self.settings, done, self.of, "iteration")
        record = {"key": self.key, "tried": way.tried, "init": way.init, "state": way.state, **told}
        write_text(self.folder / STATE, json.dumps(record, indent=1) + "\n")
        for path in self.folder.iterdir():
            if path.name not in (STATE, matrices.name):
                path.unlink()

    def discard(self) -> None:
        """Remove it."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def key_of(data: TrainingData, settings: Mapping[str, Any], start: str | None) -> str:
    """Hash what a training depends on. start: version of a fitted projection that it begins from."""
    digest = hashlib.blake2b(json.dumps([dict(settings), start, data.first_stage]).encode(), digest_size=16)
    for corpus in (
        data.documents,
        data.queries,
        *([data.query_text] if data.query_text else []),
        *(data.pairs or ()),
    ):
        digest.update("\0".join(corpus.words).encode("utf-8", "surrogatepass"))
        for array in (corpus.tokens.flat, corpus.tokens.offsets):
            digest.update(array.tobytes())
    for one in (*data.train, *data.dev):
        digest.update(f"{one.query}".encode())
        for numbers in (one.documents, one.grades, one.candidates):
            digest.update(numbers.tobytes())
    return digest.hexdigest()
