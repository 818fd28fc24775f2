"""A pool of hits to judge, and services that show it on their page."""

from __future__ import annotations

import pytest

from rerank import Document, Workspace
from rerank.judging.judgments import read_judgments
from rerank.judging.pool import Pool, PoolHit, PoolQuery, judged_file
from tests.support.service import serving

HOSTILE = '</title><script>document.title="taken"</script><img src=x onerror="document.title=1">'
SIZES = {"q1": 4, "q2": 3, "q3": 2}
TOTAL = sum(SIZES.values())


def make_pool(sizes=SIZES):
    queries = []
    for query, size in sizes.items():
        hits = [
            PoolHit(f"{query}-d{n}", f"Title {n}", f"Text {n} " + "long words " * 60) for n in range(size)
        ]
        queries.append(PoolQuery(query, f"the query {query} {'x' * 60}", tuple(hits)))
    first = queries[0]
    hostile = PoolHit("q1-d0", HOSTILE, HOSTILE)
    queries[0] = PoolQuery(first.id, HOSTILE, (hostile, *first.hits[1:]))
    return Pool(tuple(queries), ("bm25*1.00", "tfidf*1.00"), 10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judging")
    Workspace.create(folder / "ws", lang="en").engine.write([Document("d", text="a wolf")])
    return folder


@pytest.fixture
def pool(tmp_path):
    make_pool().save(tmp_path / "pool.json")
    return tmp_path / "pool.json"


@pytest.fixture
def serve(script, folder, tmp_path):
    """Start a service on a pool."""

    def start(pool, *options, **env):
        return serving(script, folder / "ws", tmp_path, "--judge", pool, *options, **env)

    return start


def grades(pool):
    judgments = read_judgments(judged_file(pool))
    return [(judgment.by, judgment.id, judgment.grade) for judgment in judgments]
