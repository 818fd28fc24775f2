"""The JSON of a stack file and its checksum."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from rerank.combiners.linear import Linear
from rerank.errors import InputError, UsageError


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Weights as JSON. ``stack`` must agree with weights and parts.

    rerank_only: weights without the first stage.
    """

    stack: str
    normalization: str
    weights: dict[str, int]
    parts: int
    rerank_only: Weights | None = None

    @classmethod
    def of(cls, linear: Linear, rerank_only: Linear | None = None) -> Weights:
        """Convert weights, without their bounds and cases."""
        return cls(
            stack=str(linear),
            normalization=linear.normalization,
            weights=dict(zip(linear.signals, linear.weights)),
            parts=linear.parts,
            rerank_only=None if rerank_only is None else cls.of(rerank_only),
        )

    def linear(
        self, bounds: Mapping[str, tuple[float, float]], cases: Mapping[str, Weights] | None = None
    ) -> Linear:
        """Return the weights of all cases. Raises UsageError for inconsistent values."""
        used = {name: pair for name, pair in bounds.items() if name in self.weights}
        linear = Linear(
            signals=tuple(self.weights),
            weights=tuple(self.weights.values()),
            parts=self.parts,
            normalization=self.normalization,
            bounds=used,
            cases={case: one.linear(bounds) for case, one in (cases or {}).items()},
        )
        if self.stack != str(linear):
            raise UsageError(
                f'"stack" says {self.stack!r}, but "weights" and "parts" make {str(linear)!r}; correct one'
            )
        return linear


class Search(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The user's search, see :class:`rerank.records.SearchTemplate`."""

    kind: str
    name: str
    fingerprint: str = ""
    pipeline: str | None = None
    index: str | None = None
    source: str = ""


class Tuned(msgspec.Struct, frozen=True):
    """The tuning record: the requested signals."""

    signals: list[str] | None = None


class StackFile(Weights, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A stack as JSON; see docs/reference/formats.md."""

    rerank_stack: int
    first_stage: str
    search: Search | None = None
    retrieve: list[str]
    depth: int
    versions: dict[str, str]
    bounds: dict[str, tuple[float, float]]
    cases: dict[str, Weights] = {}
    tuned: dict[str, Any]
    sum: str = ""


def decode(data: object) -> StackFile:
    """Check a stack file. Raises InputError for missing or wrong fields."""
    try:
        found = msgspec.convert(data, StackFile)
        msgspec.convert(found.tuned, Tuned)
    except msgspec.ValidationError as error:
        raise InputError(f"{error}; tune the stack again") from error
    return found


def read(path: str | os.PathLike[str]) -> object:
    """Read JSON. Raises InputError, without the file name."""
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe may never end
        raise InputError("cannot be read: it is not a file; name a stack file")
    try:
        return json.loads(Path(path).read_bytes())
    except FileNotFoundError as error:
        raise InputError("no such stack file; check the path, or tune one") from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"broken JSON in line {error.lineno} ({error.msg}); tune it again") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"not a JSON file ({error}); tune it again") from error


def checksum(data: Mapping[str, Any]) -> str:
    """Return the checksum of JSON values, ignoring ``sum``."""
    read = json.loads(json.dumps({name: value for name, value in data.items() if name != "sum"}))
    return blake2b(json.dumps(read, sort_keys=True).encode(), digest_size=8).hexdigest()
