"""What was learned from: queries and documents remembered by hashes, so that a measurement can be told apart
from a repetition of the training."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b

from rerank.records import Qrels

_BYTES = 5


class Seen(Mapping[str, frozenset[bytes]]):
    """Ids by what was done with them; of an id a hash of 40 bits is kept, which tells no user's words.

    ``trained``:   queries that a ranker was fitted on.
    ``stopped``:   queries that chose its epoch.
    ``tuned``:     queries that a stack's weights were chosen on.
    ``documents``: what is relevant for any of these.

    Of a million pairs of different ids one shares a hash in a million such collections.

    >>> qrels = Qrels([("q1", "d1", 1), ("q2", "d2", 1)])
    >>> seen = Seen.of(qrels, trained=["q1"])
    >>> seen.among("trained", ["q1", "q2"]), seen.among("documents", ["d1", "d2"])
    (['q1'], ['d1'])
    >>> Seen.from_json(seen.to_json()) == seen
    True
    """

    def __init__(self, hashes: Mapping[str, Iterable[bytes]]) -> None:
        kept = {name: frozenset(ids) for name, ids in hashes.items()}
        self._hashes = {name: ids for name, ids in kept.items() if ids}

    @classmethod
    def of(cls, qrels: Qrels, /, **queries: Iterable[str]) -> Seen:
        """Remember queries, and the documents that are relevant for them."""
        queries = {name: list(ids) for name, ids in queries.items()}
        relevant = {d for ids in queries.values() for query in ids for d in qrels.relevant(query)}
        return cls({name: map(_hash, ids) for name, ids in (queries | {"documents": relevant}).items()})

    def __getitem__(self, what: str) -> frozenset[bytes]:
        return self._hashes[what]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def __or__(self, other: Seen) -> Seen:
        nothing: frozenset[bytes] = frozenset()
        return Seen({name: self.get(name, nothing) | other.get(name, nothing) for name in {*self, *other}})

    def among(self, what: str, ids: Iterable[str]) -> list[str]:
        """Those of the ids that are remembered, in their order."""
        hashes = self.get(what, frozenset())
        return [id for id in ids if _hash(id) in hashes] if hashes else []

    def to_json(self) -> dict[str, str]:
        """Return the hashes, sorted, one text for each kind."""
        return {name: base64.b64encode(b"".join(sorted(ids))).decode() for name, ids in sorted(self.items())}

    @classmethod
    def from_json(cls, values: Mapping[str, str]) -> Seen:
        """Read what :meth:`to_json` wrote. Raises ValueError for anything else."""
        found = {}
        for name, text in values.items():
            data = base64.b64decode(text, validate=True)
            found[name] = [data[i : i + _BYTES] for i in range(0, len(data), _BYTES)]
        return cls(found)


def _hash(id: str) -> bytes:
    return blake2b(id.encode("utf-8", "surrogatepass"), digest_size=_BYTES).digest()
