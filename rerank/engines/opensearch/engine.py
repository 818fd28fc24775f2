"""OpenSearchEngine: documents, text index and features in an OpenSearch cluster.

The name a user gives is an alias; behind it stands an index NAME-000001. Documents that come into an empty
collection, or replace it, go into a new index, and the alias moves when that is complete. Later changes
are written in place.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opensearchpy import OpenSearch

from rerank.engines.base import FIRST_STAGES, Encoder, Engine, Ingested
from rerank.engines.opensearch.bulk import Plan, Sender, Written, action
from rerank.engines.opensearch.connection import Settings, asking, check, connect
from rerank.engines.opensearch.features import Column, column, columns, ranker_of
from rerank.engines.opensearch.layout import FEATURES, Adopted, Layout, Own, feature_field, feature_key
from rerank.engines.opensearch.searching import NO_PIPELINE, Found, Searcher, pieces
from rerank.errors import EngineError, InputError, UsageError
from rerank.files import folder_lock
from rerank.index_templates import index_body
from rerank.order import rank
from rerank.records import Candidates, Document

FORMAT = 1
"""Version of the layout of index_templates/; an index of another one is not opened."""

DEFAULT_PIPELINE = "index.search.default_pipeline"
"""The setting that names the search pipeline of searches that name none."""

LONGEST_ID = 512
"""Bytes of UTF-8 that OpenSearch allows an id."""

_PAGE = 1000  # documents a request when all are read
_BATCH = 256  # documents a call of an encoder
_KEEP = "10m"  # how long the cluster keeps a point in time between two pages
_TOGETHER = 2000  # hits that one _msearch returns, about
_WHOLE = {"allow_partial_search_results": "false"}  # a shard that does not answer is an error
_OURS = {"search_pipeline": NO_PIPELINE}  # an index's default pipeline is for others
_PAUSE = 3.0  # seconds in which copies take the place of shards that are lost
_ROUNDS = 5  # passes over documents that others keep changing while they are encoded


class OpenSearchEngine(Engine):
    """Documents, text index and features in a cluster.

    folder: where an ingest that was interrupted waits to be finished.

    Sharding decides what idf counts: each shard uses its own statistics, unless ``search_type`` is
    ``dfs_query_then_fetch``.
    """

    def __init__(
        self, settings: Settings, folder: Path, layout: Layout | None = None, lang: str | None = None
    ) -> None:
        self.settings = settings
        self.layout = layout or Own()
        self.lang = lang
        self.first_stages = self.layout.first_stages
        self._plan = folder / "unfinished"
        self._folder = folder
        with asking(settings, "connecting"):
            self._client: OpenSearch = connect(settings)
        self._searcher = Searcher(self._client, settings, self.layout)
        self._columns: dict[str, Column] = {}

    # -- the index -----------------------------------------------------------------------------------

    @classmethod
    def create(cls, settings: Settings, folder: Path, lang: str | None = None) -> OpenSearchEngine:
        """Make an empty index behind the alias ``settings.index``.

        Raises EngineError when there is an index of that name already.
        """
        engine = cls(settings, folder, lang=lang)
        check(engine._client, settings)
        if engine.indices():
            raise EngineError(
                f"{settings.where} has an index {settings.index!r} already; choose another name,"
                " `rerank attach` it as it is, or open the workspace that made it"
            )
        with engine._asking("making the index"):
            engine._new_index(f"{settings.index}-000001", alias=True)
        return engine

    @classmethod
    def open(
        cls,
        settings: Settings,
        folder: Path,
        lang: str | None = None,
        fields: Mapping[str, Sequence[str]] | None = None,
    ) -> OpenSearchEngine:
        """Use an index; ``fields`` are those of one that rerank has not made (see ``rerank attach``).

        Nothing is asked of the cluster before it is needed.
        """
        return cls(settings, folder, Adopted(fields) if fields else None, lang)

    def check(self) -> None:
        """Raise EngineError unless the cluster answers, and holds an index of the layout that is expected."""
        check(self._client, self.settings)
        there = self.indices()
        if not there:
            raise self._missing()
        if isinstance(self.layout, Own):
            for name, about in there.items():
                made = about["mappings"].get("_meta", {}).get("rerank", {}).get("format")
                if made is None:
                    raise EngineError(
                        f"index {name!r} at {self.settings.where} was not made by rerank; use it as it is"
                        " with `rerank attach`, or choose another name"
                    )
                if made != FORMAT:
                    raise EngineError(
                        f"index {name!r} has format {made}, this version of rerank reads {FORMAT}; ingest"
                        " again with --replace"
                    )

    def indices(self) -> dict[str, dict[str, Any]]:
        """The indices behind the name, with mappings, settings and aliases; empty when there is none."""
        with self._asking("looking for the index"):
            found: dict[str, dict[str, Any]] = self._client.indices.get(
                index=self.settings.index, ignore_unavailable=True, allow_no_indices=True
            )
        return found

    def _missing(self) -> EngineError:
        return EngineError(
            f"{self.settings.where} has no index {self.settings.index!r}; check the name, or make it anew"
            " with `rerank ingest CORPUS --replace`"
        )

    def _new_index(self, name: str, *, alias: bool, ingest: str = "") -> None:
        body = index_body(self.lang, shards=self.settings.shards, replicas=self.settings.replicas)
        if ingest:
            body["mappings"]["_meta"]["rerank"]["ingest"] = ingest
        if alias:
            body["aliases"] = {self.settings.index: {}}
        self._client.indices.create(index=name, body=body)
        # A node that dies before the replicas are there takes the only copy with it.
        patience = min(10.0, self.settings.timeout / 2)
        params = {
            "wait_for_no_initializing_shards": "true",
            "wait_for_events": "languid",
            "timeout": f"{1000 * patience:.0f}ms",
            "request_timeout": self.settings.timeout,
            "ignore": 408,
        }
        self._client.cluster.health(index=name, params=params)

    def _refresh(self, index: str) -> None:
        """Make what was written visible in every copy. One whose node dies meanwhile is left out then."""
        for _ in range(3):
            if not self._client.indices.refresh(index=index)["_shards"]["failed"]:
                return
        raise EngineError(
            f"not all shards of {index!r} at {self.settings.where} answer; look at `GET _cluster/health`, and"
            " run again when they do"
        )

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        with asking(self.settings, doing):
            yield

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing through this folder; see :meth:`Engine.lock`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(self._folder, f"ingesting into {self.settings.index!r}"):
            yield

    def discard(self) -> None:
        """Remove the empty index."""
        with self._asking("removing the empty index"):
            for name, about in self.indices().items():
                if "rerank" in about["mappings"].get("_meta", {}) and not len(self):
                    self._client.indices.delete(index=name)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # -- writing -------------------------------------------------------------------------------------

    def ingest(
        self,
        documents: Iterable[Document],
        delete: Iterable[str] = (),
        *,
        encoders: Sequence[Encoder] = (),
        replace: bool = False,
        skip_refused: bool = False,
        source: str = "",
        progress: Callable[[int], object] | None = None,
    ) -> Ingested:
        """Add, update and remove documents; see :meth:`Engine.ingest`.

        All documents are read and checked, and written to the engine's folder, before the first is sent.
        What an interruption leaves is finished by :meth:`finish`, which the next ingest calls first.

        replace: the documents go into a new index, and the alias moves when that is complete. It is always
            done that way while the collection is empty.
        """
        if isinstance(self.layout, Adopted):
            raise UsageError(
                f"index {self.settings.index!r} is written by others (`rerank attach`): change documents"
                " there"
            )
        with self.lock():
            if Plan.exists(self._plan):
                self._carry_out(Plan(self._plan), True, None)
            if replace and not self.indices():  # somebody has deleted it
                check(self._client, self.settings)
                with self._asking("making the index"):
                    self._new_index(f"{self.settings.index}-000001", alias=True)
            self.check()
            (current, *others) = sorted(self.indices())
            if others:
                raise EngineError(
                    f"alias {self.settings.index!r} stands for {1 + len(others)} indices; rerank writes to"
                    " one"
                )
            replace = replace or len(self) == 0
            if replace and current == self.settings.index:
                raise UsageError(
                    f"{current!r} is an index and no alias, so it cannot be replaced; ingest in place"
                )
            written: dict[str, Column] = {}
            delete = list(dict.fromkeys(delete))
            impossible = [id for id in delete if not _usable(id)]
            actions = self._actions(documents, delete, encoders, written)
            target = self._next(current) if replace else current

            def about() -> dict[str, Any]:
                made = {key: [c.dtype, c.width] for key, c in written.items()}
                return {
                    "source": source,
                    "target": target,
                    "replaces": replace and current,
                    "columns": made,
                    "unknown": impossible,
                    "name": secrets.token_hex(8),
                }

            plan = Plan.write(self._plan, actions, about)
            if plan.actions == 0:
                plan.remove()
                return Ingested(0, 0, 0, tuple(impossible))
            return self._carry_out(plan, skip_refused, progress)

    def unfinished(self) -> str | None:
        """Return the ``source`` of an ingest that was interrupted while it was sent, or None."""
        return str(Plan(self._plan).about["source"]) if Plan.exists(self._plan) else None

    def finish(
        self, *, skip_refused: bool = False, progress: Callable[[int], object] | None = None
    ) -> Ingested:
        """Send the rest of an interrupted ingest."""
        with self.lock():
            return self._carry_out(Plan(self._plan), skip_refused, progress)

    def _actions(
        self,
        documents: Iterable[Document],
        delete: Iterable[str],
        encoders: Sequence[Encoder],
        written: dict[str, Column],
    ) -> Iterator[bytes]:
        """The actions of an ingest; ``written`` receives the columns of the features among them."""
        assert isinstance(self.layout, Own)
        places: dict[str, int] = {}
        stored = self._stored() if encoders else {}
        stream = iter(documents)
        while batch := list(islice(stream, _BATCH)):
            sources = []
            for document in batch:
                _check_document(document, len(places) + 1)
                if document.id in places:
                    raise InputError(
                        f"id {document.id!r} occurs twice, as document {places[document.id]} and as document"
                        f" {len(places) + 1} of this ingest; keep one"
                    )
                places[document.id] = len(places) + 1
                sources.append(self.layout.to_source(document))
            for name, version, encode in encoders:
                key = feature_key(name, version)
                values = encode(batch)
                written[key] = column(name, values, len(batch), written.get(key) or stored.get(key))
                for source, text in zip(sources, written[key].encode(values)):
                    source.setdefault(FEATURES, {})[key] = text
            for document, source in zip(batch, sources):
                yield action("index", document.id, source)
        for id in delete:
            if id in places:
                raise InputError(f"id {id!r} is both ingested and deleted; do only one of the two")
            if _usable(id):
                yield action("delete", id)

    def _carry_out(
        self, plan: Plan, skip_refused: bool, progress: Callable[[int], object] | None
    ) -> Ingested:
        """Send a plan, and move the alias if it replaces the collection."""
        target, old = plan.about["target"], plan.about["replaces"]
        with self._asking("ingesting"):
            if old and not self._client.indices.exists(index=target):
                plan.forget_sent()  # into an index that is gone
                self._new_index(target, alias=False, ingest=plan.about["name"])
                self._client.indices.put_settings(index=target, body={"index": {"refresh_interval": "-1"}})
            elif old:
                self._check_ours(target, plan)
            now = time.time()
            made = {key: Column(dtype, width, now) for key, (dtype, width) in plan.about["columns"].items()}
            self._map(made, target)
        try:
            written = plan.send(self._client, self.settings, target, progress)
        except EngineError as error:
            raise EngineError(
                f"{error}; {plan.sent:,} of {plan.actions:,} documents are in: run the same command"
                " again to go on"
            ) from error
        if written.refused and not skip_refused:
            if old:
                with suppress(Exception):
                    self._client.indices.delete(index=target)
            plan.remove()
            first = "; ".join(f"{id!r}: {reason}" for id, reason in written.refused[:3])
            rest = "nothing was changed" if old else "the others are in"
            raise EngineError(
                f"OpenSearch refuses {len(written.refused)} of {plan.actions:,} documents, {rest}: {first};"
                " mend them, or leave such documents out with --skip-invalid"
            )
        with self._asking("completing the ingest"):
            if old:
                self._client.indices.put_settings(index=target, body={"index": {"refresh_interval": None}})
            self._refresh(target)
            if old:
                self._check_complete(target, plan, written)
                # One that was sent twice, because the first answer was lost, is no update.
                written.created, written.updated = written.created + written.updated, 0
                self._keep_pipeline(old, target)
                moves = [{"remove_index": {"index": old}}] if self._client.indices.exists(index=old) else []
                moves.append({"add": {"index": target, "alias": self.settings.index}})
                self._client.indices.update_aliases(body={"actions": moves})
        plan.remove()
        return Ingested(
            written.created,
            written.updated,
            written.deleted,
            (*written.missing, *plan.about.get("unknown", ())),
            tuple(written.refused),
            encoded=written.created + written.updated if plan.about["columns"] else 0,
        )

    def _keep_pipeline(self, old: str, target: str) -> None:
        """Give the new index the default search pipeline of the old one (``rerank hook``)."""
        found = self._client.indices.get_settings(
            index=old, name=DEFAULT_PIPELINE, params={"flat_settings": "true", "ignore_unavailable": "true"}
        )
        settings = found.get(old, {}).get("settings", {})
        if settings:
            self._client.indices.put_settings(index=target, body=settings)

    def _check_complete(self, target: str, plan: Plan, written: Written) -> None:
        """Raise EngineError when the new index does not hold what was sent: the alias must not move."""
        self._check_ours(target, plan)
        count = self._count({"match_all": {}}, target)
        added = written.created + written.updated
        if count != added:
            plan.forget_sent()
            raise EngineError(
                f"index {target!r} at {self.settings.where} was changed by others while documents came in"
                f" ({count:,} are there, not {added:,}); nothing was replaced: remove it, and run again"
            )

    def _check_ours(self, target: str, plan: Plan) -> None:
        """Raise EngineError when an index is not the one that this ingest has made.

        A cluster makes an index by itself, and not as it should be, for documents on their way into one
        that somebody has deleted.
        """
        about = self._client.indices.get(index=target)[target]["mappings"].get("_meta", {}).get("rerank", {})
        if about.get("ingest") != plan.about["name"]:
            plan.forget_sent()
            raise EngineError(
                f"index {target!r} at {self.settings.where} was deleted or made anew by others while"
                " documents came in; nothing was replaced: remove it, and run again"
            )

    def _next(self, current: str) -> str:
        """Return the name of the index after ``current``, free of what an abandoned ingest has left."""
        found = re.fullmatch(r"(.*)-(\d{6})", current)
        number = int(found[2]) if found else 0
        name = f"{self.settings.index}-{number + 1:06}"
        with self._asking("making the index"):
            if self._client.indices.exists(index=name):
                about = self._client.indices.get(index=name)[name]
                if about["aliases"] or "rerank" not in about["mappings"].get("_meta", {}):
                    raise EngineError(
                        f"{self.settings.where} has an index {name!r} that is in use; remove or rename it"
                    )
                self._client.indices.delete(index=name)
        return name

    # -- features ------------------------------------------------------------------------------------

    def _stored(self) -> dict[str, Column]:
        """Read what features the mapping knows."""
        with self._asking("reading the mapping"):
            mappings = self._client.indices.get_mapping(index=self.settings.index)
        self._columns = {
            key: c for about in mappings.values() for key, c in columns(about["mappings"]).items()
        }
        return self._columns

    def _map(self, made: Mapping[str, Column], index: str) -> None:
        """Add the fields of features to an index's mapping."""
        there = self._client.indices.get_mapping(index=index)
        for name, about in there.items():
            known = columns(about["mappings"])
            new = {key: c.mapping() for key, c in made.items() if key not in known}
            if new:
                body = {"properties": {FEATURES: {"type": "object", "dynamic": "false", "properties": new}}}
                self._client.indices.put_mapping(index=name, body=body)

    def write_features(
        self,
        encoders: Sequence[Encoder],
        *,
        part: tuple[int, int] = (0, 1),
        progress: Callable[[int], object] | None = None,
    ) -> dict[str, int]:
        """Encode the documents that lack features; see :meth:`Engine.write_features`.

        Every document that lacks any of them is written once, with all of them, and only if nobody else
        has changed it since it was read; one that was changed is read again. ``part`` makes use of sliced
        points in time, so that several processes, on several machines, share the work.
        """
        encoded = {encoder.name: 0 for encoder in encoders}
        if not encoders:
            return encoded
        for left in reversed(range(_ROUNDS)):
            before = sum(encoded.values())
            try:
                if not self._pass(encoders, part, encoded, progress):
                    break
            except EngineError:
                # A node that dies takes the point in time with it: go on at another one if that may help.
                if not left or sum(encoded.values()) == before:
                    raise
                time.sleep(_PAUSE)
        return encoded

    def _pass(
        self,
        encoders: Sequence[Encoder],
        part: tuple[int, int],
        encoded: dict[str, int],
        progress: Callable[[int], object] | None,
    ) -> bool:
        """Encode what lacks features now; return whether documents were changed meanwhile."""
        with self._asking("storing features"):
            self._refresh(self.settings.index)
        stored = dict(self._stored())
        wanted = {feature_key(e.name, e.version): e for e in encoders}
        # An update of a document drops its features (they are not part of _source): all are written again.
        serving = {feature_key(name, version) for name, version in self.feature_versions().items()}
        kept = sorted(key for key in stored if key in serving or key in wanted)
        # They are part of _source in an adopted index, where null removes those that nobody needs any more.
        adopted = isinstance(self.layout, Adopted)
        dropped: dict[str, str | None] = {key: None for key in stored if adopted and key not in kept}
        lacking = [{"bool": {"must_not": {"exists": {"field": f"{FEATURES}.{key}"}}}} for key in wanted]
        body: dict[str, Any] = {
            "size": _BATCH,
            "query": {"bool": {"should": lacking, "minimum_should_match": 1}},
            "_source": self.layout.source,
            "docvalue_fields": [f"{FEATURES}.{key}" for key in kept],
            "seq_no_primary_term": True,
        }
        counted: dict[int, list[tuple[set[str], str]]] = {}
        changed = False

        def done(number: int, written: Written) -> None:
            nonlocal changed
            if written.refused:
                id, reason = written.refused[0]
                raise EngineError(f"storing features: OpenSearch refuses document {id!r}: {reason}")
            failed = {*written.conflicts, *written.missing}
            changed |= bool(written.conflicts)
            for ids, name in counted.pop(number):
                taken = len(ids - failed)
                encoded[name] += taken
                if progress is not None:
                    progress(taken)

        # An update names its own index: an adopted alias may stand for several.
        with (
            self._asking("storing features"),
            Sender(self._client, self.settings, self.settings.index, done) as sender,
        ):
            for number, hits in enumerate(self._pages(body, part)):
                features: list[dict[str, str]] = [_stored_texts(hit, kept) for hit in hits]
                documents = [self.layout.document(hit["_id"], hit["_source"]) for hit in hits]
                counted[number] = []
                for key, (name, _, encode) in wanted.items():
                    rows = [i for i, found in enumerate(features) if key not in found]
                    if not rows:
                        continue
                    values = encode([documents[i] for i in rows])
                    there = stored.get(key)
                    stored[key] = column(name, values, len(rows), there)
                    if there is None:
                        self._map({key: stored[key]}, self.settings.index)
                    for i, text in zip(rows, stored[key].encode(values)):
                        features[i][key] = text
                    counted[number].append(({hits[i]["_id"] for i in rows}, name))
                lines = [
                    action(
                        "update",
                        hit["_id"],
                        {"doc": {FEATURES: {**dropped, **found}}},
                        **({"routing": hit["_routing"]} if "_routing" in hit else {}),
                        _index=hit["_index"],
                        if_seq_no=hit["_seq_no"],
                        if_primary_term=hit["_primary_term"],
                    )
                    for hit, found in zip(hits, features)
                ]
                sender.put(number, b"".join(lines))
        with self._asking("storing features"):
            self._refresh(self.settings.index)
        return changed

    def missing_features(self, name: str, version: str) -> int:
        """Count the documents without a feature; see :meth:`Engine.missing_features`."""
        lacking = {"bool": {"must_not": {"exists": {"field": feature_field(name, version)}}}}
        with self._asking("counting features"):
            return self._count(lacking)

    def feature_versions(self) -> dict[str, str]:
        """Ranker name -> version of the stored features: the most complete one, of two the newer."""
        stored = self._stored()
        if not stored:
            return {}
        filters = {key: {"exists": {"field": f"{FEATURES}.{key}"}} for key in stored}
        body = {**_OURS, "size": 0, "aggs": {"stored": {"filters": {"filters": filters}}}}
        with self._asking("counting features"):
            answer = self._client.search(index=self.settings.index, body=body, params=_WHOLE)
        counts = {
            key: found["doc_count"] for key, found in answer["aggregations"]["stored"]["buckets"].items()
        }
        best: dict[str, str] = {}
        for key in sorted(stored, key=lambda key: (counts[key], stored[key].since)):
            if counts[key]:
                name, version = ranker_of(key)
                best[name] = version
        return best

    # -- reading -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Count the documents."""
        with self._asking("counting documents"):
            return self._count({"match_all": {}})

    def _count(self, query: Mapping[str, Any], index: str = "") -> int:
        """Count what matches; unlike ``_count``, an answer that lacks a shard is an error."""
        body = {**_OURS, "size": 0, "track_total_hits": True, "query": query}
        answer = self._client.search(index=index or self.settings.index, body=body, params=_WHOLE)
        return int(answer["hits"]["total"]["value"])

    def state(self) -> str:
        """Hash of the indices behind the name and the last write to each shard; see :meth:`Engine.state`."""
        with self._asking("reading the index's state"):
            stats = self._client.indices.stats(index=self.settings.index, metric="docs", level="shards")
        seen = [
            (name, about["uuid"], number, copy["seq_no"]["max_seq_no"])
            for name, about in stats["indices"].items()
            for number, copies in about["shards"].items()
            for copy in copies
            if copy["routing"]["primary"]
        ]
        return hashlib.sha256(json.dumps(sorted(seen)).encode()).hexdigest()[:16]

    def ids(self) -> list[str]:
        """All document ids, ascending by code point."""
        body = {"size": 10 * _PAGE, "_source": False}
        return sorted(hit["_id"] for hits in self._pages(body) for hit in hits)

    def contains(self, ids: Iterable[str]) -> set[str]:
        """Those of the given ids that there are documents with."""
        return {found["_id"] for found in self._mget(list(dict.fromkeys(ids)), False)}

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """Return the documents with these ids, in this order; None where there is none."""
        found = {
            hit["_id"]: self.layout.document(hit["_id"], hit["_source"])
            for hit in self._mget(list(dict.fromkeys(ids)), self.layout.source)
        }
        return [found.get(id) for id in ids]

    def _mget(self, ids: Sequence[str], source: bool | list[str]) -> Iterator[dict[str, Any]]:
        usable = [id for id in ids if _usable(id)]
        for i in range(0, len(usable), _PAGE):
            some = usable[i : i + _PAGE]
            if isinstance(self.layout, Adopted):
                # Behind an alias of several indices, or with routing, only a search finds them.
                body = {**_OURS, "size": len(some), "query": {"ids": {"values": some}}, "_source": source}
                with self._asking("reading documents"):
                    answer = self._client.search(index=self.settings.index, body=body, params=_WHOLE)
                yield from answer["hits"]["hits"]
                continue
            with self._asking("reading documents"):
                docs = [{"_id": id, "_source": source} for id in some]
                answer = self._client.mget(index=self.settings.index, body={"docs": docs})
            for found in answer["docs"]:
                if "error" in found:
                    raise EngineError(f"reading documents: {found['error'].get('reason')}")
            yield from (found for found in answer["docs"] if found.get("found"))

    def documents(self) -> Iterator[Document]:
        """All documents as a stream, shard by shard."""
        body = {"size": _PAGE, "_source": self.layout.source}
        for hits in self._pages(body):
            for hit in hits:
                yield self.layout.document(hit["_id"], hit["_source"])

    def _pages(
        self, body: Mapping[str, Any], part: tuple[int, int] = (0, 1)
    ) -> Iterator[list[dict[str, Any]]]:
        """All hits at one point in time, page by page.

        With a slice for each shard, ``_doc`` is an order in which search_after costs nothing; more slices
        than shards divide each shard.
        """
        number, count = part
        with self._asking("reading documents"):
            pit = self._client.create_pit(
                index=self.settings.index, params={"keep_alive": _KEEP, "allow_partial_pit_creation": "false"}
            )
        keep = pit["pit_id"]
        try:
            shards = int(pit["_shards"]["total"])
            for shard in range(shards):
                page = {**body, **_OURS, "sort": ["_doc"], "track_total_hits": False}
                if shards * count > 1:
                    page["slice"] = {"id": number * shards + shard, "max": shards * count}
                while True:
                    page["pit"] = {"id": keep, "keep_alive": _KEEP}
                    with self._asking("reading documents"):
                        hits = self._client.search(body=page, params=_WHOLE)["hits"]["hits"]
                    if hits:
                        yield hits
                    if len(hits) < page["size"]:
                        break
                    page["search_after"] = hits[-1]["sort"]
        finally:
            with suppress(Exception):
                params = {"request_timeout": min(1.0, self.settings.timeout)}
                self._client.delete_pit(body={"pit_id": [keep]}, params=params)

    # -- searching -----------------------------------------------------------------------------------

    def search(
        self, text: str, *, first_stage: str, depth: int, features: Mapping[str, str] | None = None
    ) -> Candidates:
        """Retrieve the ``depth`` best documents; see :meth:`Engine.search`."""
        return next(self.search_many([text], first_stage=first_stage, depth=depth, features=features))

    def search_many(
        self, texts: Sequence[str], *, first_stage: str, depth: int, features: Mapping[str, str] | None = None
    ) -> Iterator[Candidates]:
        """Search for many texts with few requests; see :meth:`Engine.search_many`."""
        self._check(first_stage, depth)
        wanted = self._wanted(features)
        together = max(1, _TOGETHER // depth)
        for i in range(0, len(texts), together):
            some = [_encodable(text) for text in texts[i : i + together]]
            for text, found in zip(some, self._searcher.top(some, first_stage, depth, list(wanted.values()))):
                if found is None:
                    yield self._search_long(text, first_stage, depth, features)
                else:
                    yield self._candidates(found, depth, features or {}, wanted)

    def select(
        self, text: str, ids: Sequence[str], *, first_stage: str, features: Mapping[str, str] | None = None
    ) -> Candidates:
        """Score and order the given documents; see :meth:`Engine.select`."""
        self._check(first_stage, 1)
        wanted = self._wanted(features)
        keys = list(wanted.values())
        known = [id for id in dict.fromkeys(ids) if _usable(id)]
        everything = Found([], [], {key: [] for key in keys}, 0.0)
        for found in self._searcher.among(known, _encodable(text), first_stage, keys, matching=False):
            if found is None:
                raise self._too_long(text)
            everything.ids.extend(found.ids)
            everything.scores.extend(found.scores)
            for key in keys:
                everything.features[key].extend(found.features[key])
        there = set(everything.ids)
        for id in ids:
            if id not in there:
                raise KeyError(id)
        return self._candidates(everything, len(there), features or {}, wanted)

    def lexical(self, text: str, candidates: Candidates, signal: str) -> NDArray[np.float64]:
        """Score candidates of a search; see :meth:`Engine.lexical`."""
        self._check(signal, 1)
        text = _encodable(text)
        scores = self._lexical(text, candidates.ids, signal)
        if scores is None:
            scores = self._lexical_long(text, candidates.ids, signal)
        return scores

    def _lexical(self, text: str, ids: Sequence[str], signal: str) -> NDArray[np.float64] | None:
        """Scores of the documents; None for a text of too many terms."""
        scores: dict[str, float] = {}
        for found in self._searcher.among(ids, text, signal, (), matching=True):
            if found is None:
                return None
            scores.update(zip(found.ids, found.scores))
        return np.array([scores.get(id, 0.0) for id in ids], np.float64)

    def _lexical_long(self, text: str, ids: Sequence[str], signal: str) -> NDArray[np.float64]:
        total = np.zeros(len(ids))
        for piece in pieces(text):
            scores = self._lexical(piece, ids, signal)
            if scores is None:
                raise self._too_long(text)
            total += scores
        return total

    def _search_long(
        self, text: str, stage: str, depth: int, features: Mapping[str, str] | None
    ) -> Candidates:
        """Search with more terms than OpenSearch takes at once: piece by piece, and the scores added up."""
        tops = list(self._searcher.top(pieces(text), stage, depth, ()))
        if None in tops:
            raise self._too_long(text)
        ids = sorted({id for found in tops if found is not None for id in found.ids})
        scores = self._lexical_long(text, ids, stage)
        best = rank(ids, scores)[:depth].tolist()
        chosen = self.select("", [ids[i] for i in best], first_stage=stage, features=features)
        place = {id: i for i, id in enumerate(chosen.ids)}
        order = np.array([place[ids[i]] for i in best], np.int64)
        return Candidates(
            [ids[i] for i in best],
            scores[best],
            chosen.rows,
            {name: values[order] for name, values in chosen.features.items()},
            {name: values[order] for name, values in chosen.missing.items()},
        )

    def _candidates(
        self, found: Found, depth: int, features: Mapping[str, str], wanted: Mapping[str, str]
    ) -> Candidates:
        """Settle ties by id, cut, and decode the features."""
        ids, scores = found.ids, np.array(found.scores, np.float64)
        order: list[int] | None = rank(ids, scores).tolist()
        if order == list(range(len(ids))) and len(ids) <= depth:
            order = None
        else:
            order = order[:depth] if order is not None else None
            ids, scores = [ids[i] for i in order or ()], scores[order]
        values, missing = {}, {}
        for name in features:
            if name in wanted:
                texts = found.features[wanted[name]]
                texts = texts if order is None else [texts[i] for i in order]
                values[name], missing[name] = self._columns[wanted[name]].decode(texts)
            else:
                values[name] = np.empty((len(ids), 0), np.float32)
                missing[name] = np.ones(len(ids), np.bool_)
        return Candidates(ids, scores, np.arange(len(ids), dtype=np.int64), values, missing, found.took)

    def _wanted(self, features: Mapping[str, str] | None) -> dict[str, str]:
        """Ranker -> key of the features that are stored in the version asked for."""
        keys = {name: feature_key(name, version) for name, version in (features or {}).items()}
        if any(key not in self._columns for key in keys.values()):
            self._stored()
        return {name: key for name, key in keys.items() if key in self._columns}

    def _too_long(self, text: str) -> EngineError:
        return EngineError(
            f"a query of {len(text):,} characters has more terms than OpenSearch takes"
            " (indices.query.bool.max_clause_count); shorten it"
        )

    def _check(self, signal: str, depth: int) -> None:
        if signal not in FIRST_STAGES:
            raise UsageError(f"{signal!r} is no first stage; choose one of {', '.join(self.first_stages)}")
        if signal not in self.first_stages:
            raise UsageError(
                f"index {self.settings.index!r} has no {signal} (only indices that rerank makes do); use"
                f" {', '.join(self.first_stages)}"
            )
        if depth < 1:
            raise UsageError(f"a depth of {depth} retrieves nothing; choose at least 1")


def _stored_texts(hit: Mapping[str, Any], keys: Sequence[str]) -> dict[str, str]:
    """Feature key -> Base64 of those that a hit has."""
    fields = hit.get("fields", {})
    return {key: fields[f"{FEATURES}.{key}"][0] for key in keys if f"{FEATURES}.{key}" in fields}


def _check_document(document: Document, place: int) -> None:
    if not document.id:
        raise InputError(f"document {place} has an empty id; give it one")
    try:
        size = len(document.id.encode())
        document.content.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"document {place} ({document.id!r}) is no valid text ({error.reason}); mend it"
        ) from error
    if size > LONGEST_ID:
        raise InputError(
            f"document {place}: its id has {size} bytes and OpenSearch takes {LONGEST_ID}:"
            f" {document.id[:40]!r}…; give it a shorter one"
        )


def _usable(id: str) -> bool:
    """Whether there can be a document with this id."""
    try:
        return 0 < len(id.encode()) <= LONGEST_ID
    except UnicodeEncodeError:
        return False


def _encodable(text: str) -> str:
    """Replace lone surrogates, which only a query can hold."""
    return text if text.isascii() else text.encode(errors="replace").decode()
