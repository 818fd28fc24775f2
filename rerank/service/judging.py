"""``/judge``: people grade the hits of a pool on a page. Each grade is on disk before it is confirmed."""

from __future__ import annotations

from datetime import datetime, timezone
from threading import Lock
from typing import Any
from urllib.parse import parse_qs

import msgspec

from rerank.common.errors import UsageError
from rerank.judging.judgments import LONGEST_NAME, HandJudgment, JudgmentFile
from rerank.judging.pool import Pool, PoolQuery, judged_file
from rerank.service.context import RequestContext
from rerank.service.schemas import JudgeBody
from rerank.service.snapshot import Snapshot

PAGE = "/judge"
NEXT = "/judge/next"
HTML = "text/html; charset=utf-8"
HEADERS = (
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)
"""Headers of the page."""
_NO_JUDGMENT = HandJudgment("", "", None, "")
"""Stands for the judgment of a hit that is not judged yet."""


class Judging:
    """A pool, and the file of its judgments, which all processes of a service append to.

    page: the HTML page. Raises InputError for another file, NotSavedError if no file can be written.
    """

    def __init__(self, pool_path: str) -> None:
        from rerank.reports.judge import judging_page  # needs jinja2, which a service without --judge has not

        self.page = judging_page().encode()
        self._pool = Pool.load(pool_path)
        self._queries = {query.id: query for query in self._pool.queries}
        self._pairs = {(query.id, hit.id) for query in self._pool.queries for hit in query.hits}
        self._file = JudgmentFile(judged_file(pool_path))
        self._lock = Lock()
        self._latest: dict[str, dict[tuple[str, str], HandJudgment]] = {}
        self._counted = 0

    def judge(self, snapshot: Snapshot, body: JudgeBody, context: RequestContext) -> dict[str, Any]:
        """``POST /judge``: save the grade of a hit of the pool; null takes it back.

        Raises UsageError for a hit that is not in the pool, NotSavedError if it is not on disk.
        """
        del snapshot
        if (body.query_id, body.id) not in self._pairs:
            raise UsageError(
                f"the pool has no hit {body.id!r} of the query {body.query_id!r}; load the page again"
            )
        judge = _check_name(body.by)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
        judgment = HandJudgment(body.query_id, body.id, body.grade, judge, body.note, now)
        with self._lock, context.stage("save"):
            self._file.append(judgment)
            return {"saved": True, **self._progress(judge)}

    def next(self, query_string: bytes) -> bytes:
        """Return a query with its hits and their grades, as JSON; the query is null if all are judged.

        query_string: ``by``: the judge. ``after``: the id of a query; the next one is returned. ``query``:
        the id of the query to return.
        """
        fields = parse_qs(query_string.decode("latin-1"), errors="replace")
        judge = _check_name(fields.get("by", [""])[-1])
        after = fields.get("after", [None])[-1]
        requested_id = fields.get("query", [None])[-1]
        with self._lock:
            self._file.refresh()
            progress = self._progress(judge)
            judgments = self._latest.get(judge, {})
        query: PoolQuery | None
        if requested_id is None:
            query = self._open_query(judgments, after)
        elif requested_id in self._queries:
            query = self._queries[requested_id]
        else:
            raise UsageError(f"the pool has no query {requested_id!r}; load the page again")
        if query is None:
            return msgspec.json.encode({"query": None, "hits": [], **progress})
        hits = []
        for hit in query.hits:
            judgment = judgments.get((query.id, hit.id), _NO_JUDGMENT)
            hits.append({**msgspec.to_builtins(hit), "grade": judgment.grade, "note": judgment.note})
        number = list(self._queries).index(query.id) + 1
        shown = {"id": query.id, "text": query.text}
        return msgspec.json.encode({"query": shown, "number": number, "hits": hits, **progress})

    def _open_query(
        self, judgments: dict[tuple[str, str], HandJudgment], after: str | None
    ) -> PoolQuery | None:
        """Return the first query after another one that has a hit without a grade, or None."""
        queries = self._pool.queries
        start = list(self._queries).index(after) + 1 if after in self._queries else 0
        for query in (*queries[start:], *queries[:start]):
            for hit in query.hits:
                if judgments.get((query.id, hit.id), _NO_JUDGMENT).grade is None:
                    return query
        return None

    def _progress(self, judge: str) -> dict[str, int]:
        """Return how many hits of the pool a judge has graded."""
        if len(self._file.lines) < self._counted:  # another program has replaced the file
            self._latest.clear()
            self._counted = 0
        for line in self._file.lines[self._counted :]:
            self._latest.setdefault(line.by, {})[line.query_id, line.id] = line
        self._counted = len(self._file.lines)
        graded = 0
        for pair, judgment in self._latest.get(judge, {}).items():
            graded += judgment.grade is not None and pair in self._pairs
        return {"done": graded, "total": len(self._pairs), "queries": len(self._queries)}


def _check_name(name: str) -> str:
    """Return the name of a judge without white space around it. Raises UsageError."""
    name = " ".join(name.split())
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise UsageError(f"by: give the name of the judge, at most {LONGEST_NAME} characters")
    return name
