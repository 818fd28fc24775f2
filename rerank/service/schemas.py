"""Bodies of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from rerank.common.errors import InputError

MOST = 100_000
"""Entries of a list of documents, hits or features, with any settings of the service."""

LONGEST_HOOK = 2**20
"""Bytes of the JSON of a hook call. To read millions of small values would delay all other requests."""

JSON = "application/json"
BINARY = "application/octet-stream"
FRAME = 4
"""Bytes of the length of the JSON that begins a call of the hook, or its answer."""

_LARGEST = 3.5e38

Score = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
"""A score of OpenSearch, in single precision: sums of larger numbers would overflow."""

LONGEST_STACK = 1000
LONGEST_CATEGORY = 300
MOST_CATEGORIES = 100

Categories = Annotated[
    list[Annotated[str, Meta(max_length=LONGEST_CATEGORY)]], Meta(max_length=MOST_CATEGORIES)
]
StackText = Annotated[str, Meta(max_length=LONGEST_STACK, description="Signals, or signals with weights.")]
Words = Annotated[str, Meta(examples=["grey wolf"], extra_json_schema={"pattern": r"\S"})]
"""Not empty. The endpoint checks it; this is only its description."""
Lang = Annotated[str, Meta(max_length=100, description="Language of the query.")]
_DOCUMENTS = "Texts, or objects with `text`, `title`, `categories` and any other fields."
LexicalText = Annotated[
    str,
    Meta(description="The query in the documents' language; lexical signals use it instead of the query."),
]

MinScore = Annotated[
    float, Meta(description="Smallest probability of relevance, from 0 to 1. Needs a tuned stack.")
]

ClientId = Annotated[str, Meta(max_length=LONGEST_CATEGORY, description="Client, as in its UBI events.")]
QueryId = Annotated[str, Meta(max_length=LONGEST_CATEGORY, description="Search, as in its UBI events.")]

T = TypeVar("T")


class TextDocument(Struct):
    """A document of the request. ``return_documents`` returns its other fields."""

    id: str | None = None
    title: str | None = None
    text: str | None = None
    categories: Categories | None = None


class RerankBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The request of Cohere and Jina.

    rank_fields: fields whose texts are the text of a document; default: ``title`` and ``text``.
    """

    query: Words
    documents: Annotated[list[str | dict[str, Any]], Meta(max_length=MOST, description=_DOCUMENTS)]
    model: Annotated[str, Meta(description="Selects the stack if it names signals.")] | None = None
    lexical_text: LexicalText | None = None
    rank_fields: (
        Annotated[
            list[str],
            Meta(min_length=1, max_length=100, description="Fields with the text of a document."),
        ]
        | None
    ) = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: (
        Annotated[int, Meta(ge=1, description="Words that are read of each document.")] | None
    ) = None
    min_score: MinScore | None = None
    stack: StackText | None = None
    categories: (
        Annotated[Categories, Meta(description="Categories of the query. Default: inferred.")] | None
    ) = None
    lang: Lang | None = None


class SearchBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A search of the workspace."""

    query: Words
    lexical_text: LexicalText | None = None
    categories: Categories = []
    lang: Lang | None = None
    params: Annotated[dict[str, Any], Meta(description="Fields for the template of a search.")] = {}
    filter: Annotated[
        list[Annotated[str, Meta(max_length=600)]],
        Meta(max_length=100, description="Conditions for every hit: year>=2020, tags=a."),
    ] = []
    stack: StackText | None = None
    k: Annotated[int, Meta(ge=1, description="Hits to return.")] = 10
    depth: Annotated[int, Meta(ge=1, description="Candidates to rerank. Default: the stack's.")] | None = None
    explain: Annotated[bool, Meta(description="Return the signals of each hit.")] = True
    min_score: MinScore | None = None
    client_id: ClientId | None = None
    query_id: QueryId | None = None


class IdsBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Ids of the engine's documents."""

    query: str
    ids: Annotated[list[str], Meta(max_length=MOST)]
    stack: StackText | None = None


class JudgeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The grade of a hit by a judge."""

    query_id: Annotated[str, Meta(description="The query, of `/judge/next`.")]
    id: Annotated[str, Meta(description="The document.")]
    grade: Annotated[int, Meta(ge=0, le=3, description="0 to 3; null takes the grade back.")] | None
    by: Annotated[str, Meta(max_length=100, description="Name of the judge.")]
    note: Annotated[str, Meta(max_length=1000, description="A remark.")] = ""


class SearchOptions(Struct):
    """``ext.rerank_stack`` of the search."""

    query: str | None = None
    stack: StackText | None = None
    explain: bool = False
    categories: Categories | None = None
    lang: Lang | None = None
    client_id: ClientId | None = None
    query_id: QueryId | None = None


class RetrieveBody(Struct, kw_only=True):
    """A search whose added documents are named while it finds its own hits.

    conditions: whether the query has conditions, so that more documents are named.
    first:      number of hits of the query that will be scored.
    """

    stack: StackText | None = None
    stack_allowed: bool = False
    query: dict[str, Any] | None = None
    rerank: SearchOptions | None = None
    conditions: bool = False
    first: Annotated[int, Meta(ge=0, le=MOST)] = 0
    timeout: Annotated[float, Meta(gt=0)] | None = None
    min_score: float | None = None
    """As in :class:`HookBody`: such a search takes part in no experiment."""
    shadow: bool = False
    """As in :class:`HookBody`: such a search takes part in no experiment."""


class Places(Struct, frozen=True):
    """Indices of hits. index: positions in ``uuids``; empty: the first."""

    uuids: Annotated[list[Annotated[str, Meta(max_length=200)]], Meta(max_length=MOST)] = []
    index: Annotated[list[Annotated[int, Meta(ge=0, lt=MOST)]], Meta(max_length=MOST)] = []


class HookBody(Struct, kw_only=True):
    """The JSON of a call of the search-pipeline processor. Without ``ids``, hits have numbers."""

    hits: Annotated[int, Meta(ge=0, le=MOST)]
    first: Annotated[int, Meta(ge=0, le=MOST)] | None = None
    """Number of hits of the query; the hits that the stack retrieves follow. Default: all."""
    ids: Annotated[list[str], Meta(max_length=MOST)] = []
    stack: StackText | None = None
    index: list[str] = []
    query: dict[str, Any] | None = None
    rerank: SearchOptions | None = None
    features: Annotated[list[str], Meta(max_length=100)] = []
    """RANKER@VERSION of the stored values that follow."""
    places: Places = Places()
    timeout: Annotated[float, Meta(gt=0)] | None = None
    """Seconds that the search waits."""
    stack_allowed: bool = False
    """Whether the pipeline lists the stack of the search, so that it may read any field."""
    min_score: float | None = None
    """Smallest probability of relevance of an answered hit: of the search, else of the pipeline."""
    shadow: bool = False
    """Whether the answer is only counted, and the search keeps its order."""
    raw_values: bool = False
    """Whether the pipeline lets explanations show values of documents."""


@dataclass(frozen=True, slots=True)
class Values:
    """The stored values of one field: lengths, (n,), 0 for a hit without a value; and their bytes."""

    lengths: NDArray[np.int64]
    data: bytes

    @classmethod
    def read(cls, call: bytes, begin: int, count: int) -> Values:
        """Read the values of ``count`` hits that begin at this byte of a call.

        Raises InputError if the call has fewer bytes, or lengths that are negative.
        """
        length_bytes = call[begin : begin + 4 * count]
        lengths = np.frombuffer(length_bytes[: len(length_bytes) // 4 * 4], ">i4").astype(np.int64)
        end = begin + 4 * count + int(lengths.sum())
        is_complete = len(lengths) == count and end <= len(call)
        if not is_complete or lengths.min(initial=0) < 0:
            raise InputError(f"the bytes of {count} hits came with stored values of another length")
        return cls(lengths, call[begin + 4 * count : end])

    def of_size(self, size: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return the k values of this size, (k, size), and (n,) bool: missing or of another size."""
        missing = self.lengths != size
        values = np.frombuffer(self.data, np.uint8)
        if self.lengths[missing].any():
            values = values[np.repeat(~missing, self.lengths)]
        return values.reshape(-1, size), missing

    def split(self) -> dict[int, bytes]:
        """Return position of a hit -> its value, for the hits with a value."""
        values: dict[int, bytes] = {}
        begin = 0
        for hit, length in enumerate(self.lengths.tolist()):
            if length:
                values[hit] = self.data[begin : begin + length]
            begin += length
        return values


def _end_of_json(call: bytes) -> int:
    """Return where the JSON of a call ends. Raises InputError if it is incomplete or too long."""
    length = int.from_bytes(call[:FRAME], "big")
    received = len(call) - FRAME
    if length > received:
        raise InputError(f"{length:,} bytes of JSON are announced, but {received:,} came")
    if length > LONGEST_HOOK:
        raise InputError(f"{length:,} bytes of JSON, but {LONGEST_HOOK:,} are read; send less")
    return FRAME + length


@dataclass(frozen=True, slots=True)
class HookCall:
    """A hook call: its JSON, ids and scores of n hits, and stored values.

    locations: shards, sequence numbers and primary terms, (n,) each; None: the call names no indices.
    stored:    RANKER@VERSION -> values.
    """

    body: HookBody
    ids: list[str]
    scores: NDArray[np.float64]
    locations: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None
    stored: Mapping[str, Values] = field(default_factory=dict)

    @classmethod
    def read(cls, data: bytes) -> HookCall:
        """Read the parts of a call: its JSON, then ids, scores and locations of the hits, then stored values.

        Raises msgspec.DecodeError for invalid JSON, InputError if the parts do not have the lengths that the
        JSON announces.
        """
        end = _end_of_json(data)
        body = decode(data[FRAME:end], HookBody)
        binary = data[end:]
        n = body.hits
        # no id of a document begins with NUL
        ids = body.ids or [f"\0{i:06}" for i in range(n)]
        size = n * 28
        if len(ids) != n or size > len(binary):
            raise InputError(f"{n} hits came with {len(ids)} ids and {len(binary):,} bytes; send all of each")
        scores = np.frombuffer(binary, ">f8", n).astype(np.float64)
        if n and not np.abs(scores).max() <= _LARGEST:
            raise InputError("the score of a hit is not a number of single precision")
        shards = np.frombuffer(binary, ">i4", n, 8 * n).astype(np.int64)
        seq_nos, terms = np.frombuffer(binary, ">i8", 2 * n, 12 * n).astype(np.int64).reshape(2, n)
        stored = {}
        for name in body.features:
            stored[name] = Values.read(binary, size, n)
            size += 4 * n + len(stored[name].data)
        if size < len(binary):
            raise InputError(f"{len(binary) - size:,} bytes are too many")
        locations = (shards, seq_nos, terms) if body.places.uuids else None
        return cls(body, ids, scores, locations, stored)


class Problem(Struct):
    """An error, in one line."""

    error: str


EXAMPLE_OF_HOOK = '\0\0\0\x0b{"hits": 0}'


_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_OTHER_BOMS = (b"\xff\xfe", b"\xfe\xff")


def decode(data: bytes, kind: type[T]) -> T:
    """Read a JSON body as an object of a type.

    Raises msgspec.ValidationError for an unknown or invalid field, msgspec.DecodeError for other data.
    """
    if data.startswith(_OTHER_BOMS):
        raise msgspec.DecodeError("it is UTF-16 or UTF-32; send UTF-8")
    if data.startswith(_GZIP):
        raise msgspec.DecodeError("it is gzip; send Content-Encoding: gzip")
    try:
        return msgspec.json.decode(data.removeprefix(_BOM), type=kind)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(_with_known_fields(str(error), kind)) from error
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deep") from error
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8 (byte {error.start})") from error


def _with_known_fields(message: str, kind: type[object]) -> str:
    """Add the names of the fields to a message about an unknown one."""
    if "unknown field" not in message or not issubclass(kind, Struct):
        return message
    return f"{message}; the fields are {', '.join(kind.__struct_encode_fields__)}"
