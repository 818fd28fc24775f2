"""The file of a stack: what its JSON must hold, and the checksum of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from rerank.errors import InputError


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The weights of a case of queries. stack: for reading; it must agree with weights and parts.

    rerank_only: the weights without the first stage's signal, if they were tuned.
    """

    stack: str
    normalization: str
    weights: dict[str, int]
    parts: int
    rerank_only: Weights | None = None


class Search(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The user's search, as :class:`rerank.records.SearchTemplate`."""

    kind: str
    name: str
    fingerprint: str = ""
    pipeline: str | None = None
    index: str | None = None
    source: str = ""


class Tuned(msgspec.Struct, frozen=True):
    """The part of the record of a tuning that has a meaning later: the signals that were asked for."""

    signals: list[str] | None = None


class StackFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A stack's JSON; see docs/reference/formats.md."""

    rerank_stack: int
    stack: str
    first_stage: str
    search: Search | None = None
    retrieve: list[str]
    depth: int
    normalization: str
    weights: dict[str, int]
    parts: int
    versions: dict[str, str]
    bounds: dict[str, tuple[float, float]]
    cases: dict[str, Weights] = {}
    rerank_only: Weights | None = None
    tuned: dict[str, Any]
    sum: str = ""


def decode(data: object) -> StackFile:
    """Check the values of a stack's file. Raises InputError for a field that is missing or wrong."""
    try:
        found = msgspec.convert(data, StackFile)
        msgspec.convert(found.tuned, Tuned)
    except msgspec.ValidationError as error:
        raise InputError(f"{error}; tune the stack again") from error
    return found


def read(path: str | os.PathLike[str]) -> object:
    """Read the JSON of a file. Raises InputError, without the file's name, for a file that cannot be read."""
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
    """Return the checksum of a stack's JSON values, without the checksum itself."""
    read = json.loads(json.dumps({name: value for name, value in data.items() if name != "sum"}))
    return blake2b(json.dumps(read, sort_keys=True).encode(), digest_size=8).hexdigest()
