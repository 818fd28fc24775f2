"""What requests and answers look like; the OpenAPI description is made from these classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from rerank.errors import InputError

Categories = Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=100)]
MOST = 100_000
"""Entries that a list of documents, hits or features can have, whatever the service is told."""

LONGEST_HOOK = 2**20
"""Bytes of a hook's JSON. Millions of small values would hold up every other request while they are read."""

NUMBERS_FOLLOW = b"\1"
"""First byte of a hook's call, or of its answer, with numbers as bytes: no JSON begins like that."""

_LARGEST = 3.5e38
Score = Annotated[FiniteFloat, Field(ge=-_LARGEST, le=_LARGEST)]
"""Of OpenSearch, in single precision: sums of what is larger would overflow."""

StackText = Annotated[str, Field(max_length=1000)]
Words = Annotated[str, Field(json_schema_extra={"pattern": r"\S"})]
"""Not empty. Only described here: what is wrong with it is said by the endpoint."""


Lang = Annotated[str, Field(max_length=100)]

_LEXICAL = "What lexical signals look for instead: the query in the documents' language."


def _example(**body: Any) -> ConfigDict:
    """An example in the OpenAPI description."""
    return ConfigDict(json_schema_extra={"examples": [body]})


class TextDocument(BaseModel):
    """A document of the request. Fields that are not named here come back with ``return_documents``."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    title: str | None = None
    text: str | None = None
    categories: Categories | None = None


class RerankBody(BaseModel):
    """Cohere's and Jina's request; what only they know is ignored."""

    model_config = _example(query="grey wolf", documents=["a fox", "the wolf is grey"], stack="bm25")

    model: str | None = Field(None, description="Selects the stack if it names signals; else ignored.")
    query: Words
    lexical_text: str | None = Field(None, description=_LEXICAL)
    documents: list[str | TextDocument] = Field(max_length=MOST)
    top_n: int | None = Field(None, ge=1)
    return_documents: bool | None = None
    stack: StackText | None = Field(None, description="Signals, or signals with weights.")
    categories: Categories | None = Field(None, description="Of the query; inferred when there are none.")
    lang: Lang | None = Field(None, description="Of the query.")


class SearchBody(BaseModel):
    """A search by the workspace's engine."""

    model_config = ConfigDict(extra="forbid", **_example(query="grey wolf", stack="tfidf", k=3))

    query: Words
    lexical_text: str | None = Field(None, description=_LEXICAL)
    categories: Categories = []
    lang: Lang | None = None
    params: dict[str, Any] = Field({}, description="Further fields, for a search of your own.")
    filter: Annotated[list[Annotated[str, Field(max_length=600)]], Field(max_length=100)] = Field(
        [], description="What every hit must fulfil: year>=2020, tags=a."
    )
    stack: StackText | None = None
    k: int = Field(10, ge=1, description="Hits to return.")
    depth: int | None = Field(None, ge=1, description="Candidates to rerank; None: the stack's.")
    explain: bool = Field(True, description="Return each hit's signals.")


class HookWishes(BaseModel):
    """What the user says of reranking in the search itself, as ``ext.rerank``."""

    query: str | None = None
    stack: StackText | None = None
    explain: bool = False
    categories: Categories | None = None
    lang: Lang | None = None


class Rows(BaseModel):
    """Where one ranker's features are in the bytes behind the JSON: a row for each hit that has some."""

    bytes: int = Field(ge=0, le=MOST, description="Of a row.")
    missing: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list, max_length=MOST, description="Hits without."
    )


class Places(BaseModel):
    """Where hits are. index: of each its uuid's place in ``uuids``; empty: all are of the first."""

    uuids: list[Annotated[str, Field(max_length=200)]] = Field(default_factory=list, max_length=MOST)
    index: list[int] = Field(default_factory=list, max_length=MOST)
    shards: list[int] = Field(default_factory=list, max_length=MOST)
    seq_nos: list[int] = Field(default_factory=list, max_length=MOST)
    terms: list[int] = Field(default_factory=list, max_length=MOST)
    follow: bool = Field(False, description="Whether shards, sequence numbers and terms are bytes.")


NOWHERE = Places.model_validate({})


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a call says of its n hits in numbers: (n,) each; all but the scores (0,) where no place came."""

    scores: NDArray[np.float64]
    shards: NDArray[np.int64]
    seq_nos: NDArray[np.int64]
    terms: NDArray[np.int64]


_NONE = np.empty(0, np.int64)


class HookBody(BaseModel):
    """Hits of a search, from the search-pipeline processor.

    Features are raw bytes behind the JSON, whose length then comes first: four bytes, the highest first.
    Where the first of them is 1, the scores and places of the hits are bytes, too, and come before.
    """

    model_config = _example(
        query={"match": {"content": {"query": "grey wolf"}}}, ids=["a", "b"], scores=[2.5, 1.5], stack="tfidf"
    )

    stack: StackText | None = None
    index: list[str] = Field(default_factory=list)
    query: dict[str, Any] | None = Field(None, description="The search's query.")
    rerank: HookWishes | None = None
    ids: list[str] = Field(max_length=MOST)
    scores: list[Score] = Field(max_length=MOST)
    features: dict[str, Rows] = Field(
        default_factory=dict,
        description="RANKER@VERSION -> the rows that follow, one ranker after the other.",
    )
    categories: dict[str, list[str]] = Field(
        default_factory=dict, description="Id -> categories of the first hits."
    )
    clauses: dict[str, list[Score]] | None = Field(
        None, description="Named clause of the query -> its score for each hit, 0 where it does not match."
    )
    places: Places | None = Field(None, description="Index, shard, sequence number and term of each hit.")
    timeout: float | None = Field(None, gt=0, description="Seconds that the search waits.")

    @classmethod
    def read(cls, data: bytes) -> HookCall:
        """Read JSON alone, or JSON with its length before it, and numbers and features behind it.

        Raises ValidationError; InputError when the length is more than there is, or than is read.
        """
        # No JSON begins like that, and no length of 16 MiB is read.
        framed = data[:1] in (b"\0", NUMBERS_FOLLOW)
        begin, end = (4, 4 + int.from_bytes(data[1:4], "big")) if framed else (0, len(data))
        if end > len(data):
            raise InputError(f"{end - 4:,} bytes of JSON are announced, but {len(data) - 4:,} came")
        if end - begin > LONGEST_HOOK:
            raise InputError(f"{end - begin:,} bytes of JSON, but {LONGEST_HOOK:,} are read; send less")
        said, behind = data[begin:end], data[end:]
        if data[:1] == NUMBERS_FOLLOW:
            return _NumbersFollow.model_validate_json(said).cut(behind)
        return HookCall.of(cls.model_validate_json(said), behind)


@dataclass(frozen=True, slots=True)
class HookCall:
    """A call of the hook: what its JSON says, and what came behind it.

    ids:            of the n hits.
    behind:         the features' bytes.
    numbers_follow: whether numbers came as bytes, and are answered so.
    """

    said: HookBody
    ids: list[str]
    numbers: Numbers
    behind: bytes = b""
    numbers_follow: bool = False

    @classmethod
    def of(cls, said: HookBody, behind: bytes = b"") -> HookCall:
        """A call whose JSON says all numbers."""
        places = said.places or NOWHERE
        found = (integers(part) for part in (places.shards, places.seq_nos, places.terms))
        return cls(said, said.ids, Numbers(np.array(said.scores, np.float64), *found), behind)

    @property
    def is_nameless(self) -> bool:
        """Whether hits have numbers in the place of ids."""
        return self.numbers_follow and not self.said.ids

    def rows(self) -> dict[str, tuple[bytes, Rows]]:
        """RANKER@VERSION -> its rows. Raises InputError when they are not as many bytes as came."""
        found, begin = {}, 0
        for key, rows in self.said.features.items():
            size = rows.bytes * (len(self.ids) - len(rows.missing))
            found[key] = (self.behind[begin : begin + size], rows)
            if size < 0 or len(found[key][0]) < size or max(rows.missing, default=-1) >= len(self.ids):
                raise InputError(f"{len(self.ids)} ids came with other features {key[:100]!r}")
            begin += size
        if begin < len(self.behind):
            raise InputError(f"{len(self.behind) - begin:,} bytes of features are too many")
        return found


def integers(part: list[int]) -> NDArray[np.int64]:
    """A part of the places as an array. Raises InputError."""
    try:
        return np.array(part, np.int64)
    except OverflowError as error:
        raise InputError("places have numbers of more than 64 bits") from error


class _NumbersFollow(HookBody):
    """A call whose numbers are bytes. Hits without ids are numbered."""

    hits: int = Field(ge=0, le=MOST)
    ids: list[str] = Field(default_factory=list, max_length=MOST)
    scores: list[Score] = Field(default_factory=list, max_length=0)

    def cut(self, behind: bytes) -> HookCall:
        """Take the numbers from the bytes behind the JSON."""
        n, ids = self.hits, self.ids or numbered(self.hits)
        follow = self.places is not None and self.places.follow
        size = n * (28 if follow else 8)
        if len(ids) != n or size > len(behind):
            raise InputError(f"{n} hits came with {len(ids)} ids and {len(behind):,} bytes; send all of each")
        scores = np.frombuffer(behind, ">f8", n).astype(np.float64)
        if n and not np.abs(scores).max() <= _LARGEST:
            raise InputError("a hit's score is no number of single precision")
        places = [_NONE] * 3
        if follow:
            shards = np.frombuffer(behind, ">i4", n, 8 * n).astype(np.int64)
            numbers, terms = np.frombuffer(behind, ">i8", 2 * n, 12 * n).astype(np.int64).reshape(2, n)
            places = [shards, numbers, terms]
        return HookCall(self, ids, Numbers(scores, *places), behind[size:], True)


@lru_cache(16)
def numbered(count: int) -> list[str]:
    """Ids of hits that came without, in their order.

    >>> numbered(2)
    ['000000', '000001']
    """
    return [f"{i:06}" for i in range(count)]


class IdsBody(BaseModel):
    """Documents that the engine has, by their ids."""

    model_config = ConfigDict(extra="forbid")

    query: str
    ids: list[str] = Field(max_length=MOST)
    stack: StackText | None = None


class Problem(BaseModel):
    """What went wrong, in one line."""

    error: str


class RerankResult(BaseModel):
    """One document: where it was in the request, and its score."""

    index: int
    relevance_score: float
    document: dict[str, Any] | None = None


class RerankAnswer(BaseModel):
    """Documents, best first."""

    id: str
    model: str
    results: list[RerankResult]
    meta: dict[str, Any]
    usage: dict[str, int]
    unknown_categories: list[str]


class IdsAnswer(BaseModel):
    """Places in the request's list, best first, and their scores."""

    model: str
    results: list[RerankResult]


class SearchAnswer(BaseModel):
    """The JSON of ``rerank query --json``."""

    query: str
    categories: list[str]
    categories_inferred: bool
    unknown_categories: list[str]
    case: str
    stack: str
    normalisation: str
    candidates: int
    found: dict[str, int]
    recomputed: dict[str, int]
    hits: list[dict[str, Any]]


class HookAnswer(BaseModel):
    """Ids in their new order, or why the hits were passed through as they are."""

    ids: list[str] | None = None
    scores: list[float] | None = None
    wishes: dict[str, Any] | None = Field(None, description="What to send with the next request.")
    signals: list[dict[str, Any]] | None = None
    weights: dict[str, str] | None = Field(
        None, description="With signals: the weights that were taken, and for which case of queries."
    )
    unknown_categories: list[str] | None = Field(
        None, description="Categories of the query that no signal knows; they were ignored."
    )
    passed: str | None = None
