"""The settings of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rerank.common.errors import UsageError
from rerank.engines.opensearch.connection import is_url


@dataclass(frozen=True)
class HookOptions:
    """The settings of a pipeline.

    service:    URL of the service, as the nodes reach it. The route plugin also takes several URLs, with
                commas between them: searches ask one service after the other.
    stack:      the stack that scores; None: the default.
    depth:      candidates per search.
    timeout:    seconds to wait for the service.
    on_failure: ``first_stage`` or ``error``: answer of a search that cannot be reranked.
    add_to:     an existing pipeline whose processors are copied into this one.
    min_score:  smallest probability of relevance of a hit, from 0 to 1; None: no hit is removed.
    shadow:     score and count, but keep the order.
    retrieve:   for the route plugin: add documents that the rankers of the stack retrieve; None: if it was
                tuned with such rankers.
    words:      fields with the words of users, in which a required match does not restrict added documents.
    token:      for the route stock; ML Commons encrypts it.
    id_field:   for the route stock: the field that repeats ``_id``. None: ``id`` in indices of rerank, else
                ``_id`` (send ``"docvalue_fields": ["_id"]``).
    """

    service: str
    stack: str | None = None
    depth: int = 100
    timeout: float = 1.0
    on_failure: str = "first_stage"
    add_to: str | None = None
    min_score: float | None = None
    shadow: bool = False
    retrieve: bool | None = None
    words: Sequence[str] = ()
    token: str = field(default="", repr=False)
    id_field: str | None = None

    @property
    def urls(self) -> list[str]:
        """The URLs of the services, each without a slash at the end."""
        return split_urls(self.service)

    @property
    def url(self) -> str:
        """The URLs with commas between them, as a pipeline stores them."""
        return ",".join(self.urls)

    def __post_init__(self) -> None:
        for url in self.urls:
            may_have_token = not set("?#@").isdisjoint(url)
            if may_have_token or not is_url(url):
                raise UsageError(
                    f"--service {url!r}: not a URL like http://a:8765; a token belongs in the keystore"
                )
        if not 0.001 <= self.timeout <= 60:
            raise UsageError(f"--timeout {self.timeout}: give 0.001 to 60 seconds")
        if self.min_score is not None and not 0 <= self.min_score <= 1:
            raise UsageError(f"--min-score {self.min_score:g}: give a number from 0 to 1")


def split_urls(text: str) -> list[str]:
    """Return the URLs of a text with commas between them, each once and without a slash at the end.

    >>> split_urls("http://a:8765/, http://b:8765,http://a:8765")
    ['http://a:8765', 'http://b:8765']
    """
    urls = [url.strip().rstrip("/") for url in text.split(",")]
    return list(dict.fromkeys(urls))
