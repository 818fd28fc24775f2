"""Bodies of requests: their encoding, and the memory that they may take together."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from rerank.common.values import items_not_in
from rerank.service.access import Headers, header_values

_FREE = 2**18
"""Bytes of each body that do not count, so that large bodies do not stop searches and calls of the hook."""

_PER_REQUEST = 2**20  # bytes of large bodies for each request at the same time

_GZIP = 16 + zlib.MAX_WBITS


class BodyError(Exception):
    """A body that is not read. kind: its counter. header: of the answer."""

    status: int
    kind: str
    header: tuple[str, str]


class BodyTooLongError(BodyError):
    """A body is longer than the limit."""

    status = 413
    kind = "too long"
    header = ("Connection", "close")

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is longer than {limit:,} bytes; send less")


class UnknownEncodingError(BodyError):
    """A body has a ``Content-Encoding`` that is not read."""

    status = 415
    kind = "content type"
    header = ("Accept-Encoding", "gzip")


class TooManyBytesError(BodyError):
    """The bodies of this process take too much memory."""

    status = 503
    kind = "busy"
    header = ("Retry-After", "1")

    def __init__(self) -> None:
        super().__init__("too many large requests at once; try again")


class Bodies:
    """The memory of all bodies of a process."""

    def __init__(self, max_body: int, max_requests: int) -> None:
        self._available = max_body + max_requests * _PER_REQUEST

    @contextmanager
    def reserve(self) -> Iterator[Reservation]:
        """Count the bytes of one body until the end of the block."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            self._available += reservation.counted

    def take(self, size: int) -> None:
        """Count bytes of a body. Raises TooManyBytesError if they do not fit into the memory."""
        if size > self._available:
            raise TooManyBytesError
        self._available -= size


class Reservation:
    """The bytes of one body. counted: those above the free ones."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._size = 0
        self.counted = 0

    def add(self, size: int) -> None:
        """Count more bytes of this body. Raises TooManyBytesError if they do not fit into the memory."""
        self._size += size
        counted = max(self._size - _FREE, 0)
        self._bodies.take(counted - self.counted)
        self.counted = counted


@dataclass(frozen=True)
class Body:
    """A body before decompression. limit: bytes after it."""

    data: bytes
    encoding: str | None
    limit: int

    def decoded(self) -> bytes:
        """Return the decompressed body.

        Raises BodyTooLongError for more bytes than ``limit``, msgspec.DecodeError for damaged data.
        """
        if self.encoding is None:
            return self.data
        decompressor = zlib.decompressobj(_GZIP)
        try:
            data = decompressor.decompress(self.data, self.limit + 1)
        except zlib.error as error:
            raise msgspec.DecodeError(f"damaged gzip data ({error})") from error
        if len(data) > self.limit:
            raise BodyTooLongError(self.limit)
        if not decompressor.eof:
            raise msgspec.DecodeError("the gzip data ends early")
        return data


def content_encoding(headers: Headers) -> str | None:
    """Return how a body is compressed: ``gzip``, or None if it is not compressed.

    headers: of the request, with names in lower case.

    Raises UnknownEncodingError for another encoding.
    """
    values = [value.strip().lower() for value in header_values(headers, b"content-encoding")]
    encodings = items_not_in(values, ("", "identity"))
    if not encodings:
        return None
    if encodings in (["gzip"], ["x-gzip"]):
        return "gzip"
    names = ", ".join(encodings)[:100]
    raise UnknownEncodingError(f"the Content-Encoding {names!r} is not read; send gzip, or do not compress")
