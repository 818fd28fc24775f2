"""Approximate search finds nearly the same documents as exact search, and as many of them."""

from __future__ import annotations

import errno
import os
import shutil
import time

import numpy as np
import pytest

from rerank import Document, Workspace, encode, ingest, train, tune
from rerank.common.errors import EngineError
from rerank.engines import approximate
from rerank.engines.local import snapshot
from rerank.engines.local.engine import _union
from rerank.engines.nearest import nearest

faiss = pytest.importorskip("faiss", reason="the extra `scale` is not installed")

WIDTH, ROWS = 32, 10_000
NOTHING = np.empty(0, np.int64)


@pytest.fixture(scope="module", autouse=True)
def small_limits():
    """Compare fewer rows exactly, so that small indices are also searched approximately.

    Fewer queries test how many clusters a query has to read, which is most of the time of a build.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(approximate, "_MAX_EXACT", ROWS // 2)
        patch.setattr(approximate, "_TEST_QUERIES", 10)
        yield


def ids_of(rows):
    return [f"{row:08}" for row in rows.tolist()]


def clustered(rows, width=WIDTH):
    """Return float16 unit vectors around 300 random centers."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(300, width))
    vectors = centers[rng.integers(300, size=rows)] + 0.7 * rng.normal(size=(rows, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


def with_passages(vectors, passages):
    """Return int8 features of 1 to ``passages`` vectors of different lengths each."""
    rng = np.random.default_rng(1)
    lengths = rng.uniform(40, 127, size=(len(vectors), 1))
    codes = np.rint(vectors.astype(np.float32) * lengths).astype(np.int8).reshape(-1, passages * WIDTH)
    counts = rng.integers(1, passages + 1, size=len(codes)).astype(np.int8)
    for number in range(passages):
        codes[counts <= number, number * WIDTH : (number + 1) * WIDTH] = 0
    return np.hstack([codes, counts[:, None]])


def open_index(folder, passages):
    return approximate.open_index(approximate.find_index(folder), passages)


def queries_near(vectors, count=20):
    rng = np.random.default_rng(2)
    rows = rng.choice(len(vectors), count, replace=False)
    queries = vectors[rows].astype(np.float32) + 0.05 * rng.normal(size=(count, vectors.shape[1]))
    return (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    matrix = clustered(ROWS)
    folder = tmp_path_factory.mktemp("index")
    approximate.ApproximateIndex.build(matrix, 0).write(folder)
    return matrix, open_index(folder, 0)


def recall(index, matrix, queries, depth, excluded=NOTHING):
    """Return the mean share of the exact results, and check that as many documents are returned."""
    exact = list(nearest(matrix, queries, depth, index.passages, excluded, ids_of))
    shares = []
    for query, expected in zip(queries, exact):
        actual = index.search(matrix, query, depth, excluded, ids_of)
        assert len(actual) == len(expected)
        assert not np.isin(actual, excluded).any()
        assert (np.diff(actual) > 0).all()
        shares.append(np.isin(actual, expected).mean())
    return np.mean(shares)


@pytest.mark.parametrize("depth", [10, 100, 1000])
def test_most_of_the_nearest_are_returned(single, depth):
    matrix, index = single
    assert recall(index, matrix, queries_near(matrix), depth) > 0.95


@pytest.fixture(scope="module")
def with_long_codes(single, tmp_path_factory):
    """An index of a large collection. Before short codes existed, all files were like this one."""
    matrix, _ = single
    folder = tmp_path_factory.mktemp("long")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(approximate, "_MAX_SHORT_CODES", 1000)
        approximate.ApproximateIndex.build(matrix, 0).write(folder)
    return matrix, open_index(folder, 0)


def test_large_collections_have_longer_codes(single, with_long_codes):
    matrix, index = with_long_codes
    assert index.ivf.code_size > single[1].ivf.code_size
    assert recall(index, matrix, queries_near(matrix), 100) > 0.95


def test_errors_of_short_codes_do_not_raise_the_number_of_clusters(monkeypatch):
    """With codes of two numbers, no number of clusters finds 0.99 of the nearest 1,000."""
    matrix = clustered(ROWS, 128)
    index = approximate.ApproximateIndex.build(matrix, 0)
    monkeypatch.setattr(approximate, "_MAX_SHORT_CODES", 1000)
    with_long_codes = approximate.ApproximateIndex.build(matrix, 0)
    assert index.ivf.nprobe == with_long_codes.ivf.nprobe < index.ivf.nlist


@pytest.mark.parametrize("passages", [0, 2])
def test_clusters_are_counted_in_a_sample(monkeypatch, passages):
    sizes = []

    def counted(matrix, *rest):
        sizes.append(len(matrix))
        return nearest(matrix, *rest)

    monkeypatch.setattr(approximate, "nearest", counted)
    monkeypatch.setattr(approximate, "_TEST_SAMPLE", 2000)
    matrix = with_passages(clustered(ROWS * 2), passages) if passages else clustered(ROWS)
    index = approximate.ApproximateIndex.build(matrix, passages)
    assert sizes == [2000]
    monkeypatch.setattr(approximate, "_TEST_SAMPLE", 10 * ROWS)
    of_all_rows = approximate.ApproximateIndex.build(matrix, passages)
    assert abs(index.ivf.nprobe - of_all_rows.ivf.nprobe) < 0.25 * index.ivf.nlist


@pytest.mark.parametrize("share", [0.9, 0.6, 0.3, 0.01])  # up to 0.5, all remaining rows are compared
@pytest.mark.parametrize("codes", ["single", "with_long_codes"])
def test_filters_keep_the_number_of_documents(request, codes, share):
    matrix, index = request.getfixturevalue(codes)
    excluded = np.flatnonzero(np.random.default_rng(3).random(ROWS) > share)
    assert recall(index, matrix, queries_near(matrix), 100, excluded) > 0.9


def test_more_clusters_are_read_if_a_filter_leaves_out_the_nearest_ones():
    rng = np.random.default_rng(5)
    query = np.zeros(WIDTH, np.float32)
    query[0] = 1
    noise = rng.normal(size=(11_000, WIDTH)) / np.sqrt(WIDTH)
    noise[:, 0] = 0
    is_near = np.arange(11_000) < 5_000
    vectors = noise + np.where(is_near, 4, 0.3)[:, None] * query
    matrix = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    index = approximate.ApproximateIndex.build(matrix, 0)
    assert recall(index, matrix, query[None], 100, np.flatnonzero(is_near)) > 0.4


def test_newer_rows_are_compared_exactly(single):
    matrix, index = single
    query = queries_near(matrix, 1)
    newer = np.vstack([matrix, query.astype(np.float16), -query.astype(np.float16)])
    rows = index.search(newer, query[0], 10, NOTHING, ids_of)
    assert ROWS in rows
    assert ROWS + 1 not in rows


def test_passages_count_by_their_largest_cosine(tmp_path):
    vectors = clustered(ROWS * 3)
    matrix = with_passages(vectors, 3)
    approximate.ApproximateIndex.build(matrix, 3).write(tmp_path)
    index = open_index(tmp_path, 3)
    assert recall(index, matrix, queries_near(vectors), 100) > 0.95


def test_the_same_features_give_the_same_index(tmp_path):
    matrix = clustered(5000)
    files = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        approximate.ApproximateIndex.build(matrix, 0).write(tmp_path / name)
        (path,) = (tmp_path / name).iterdir()
        files.append(path.read_bytes())
    assert files[0] == files[1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "ws"
    rng = np.random.default_rng(4)
    words = np.array([f"w{number}" for number in range(60)])
    documents = [Document(f"d{i:04}", text=" ".join(rng.choice(words, 8))) for i in range(400)]
    ingest(folder, documents)
    queries = [{"_id": f"q{i}", "text": documents[i].text[:12]} for i in range(40)]
    qrels = {f"q{i}": {documents[i].id: 1} for i in range(40)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(approximate, "MIN_ROWS", 200)
        train(folder, "s2net", queries=queries, qrels=qrels, config={"dim": 16, "epochs": 1})
        tune(folder, "bm25,s2net", queries=queries, qrels=qrels, retrieve=["bm25", "s2net:20"])
    return folder, documents


@pytest.fixture
def workspace(trained, tmp_path, monkeypatch):
    """A copy of the trained workspace, with the limit of rows of its index."""
    monkeypatch.setattr(approximate, "MIN_ROWS", 200)
    folder, documents = trained
    shutil.copytree(folder, tmp_path / "ws")
    return tmp_path / "ws", documents


def answer(folder, text, **options):
    workspace = Workspace.open(folder)
    return workspace.search(text, 10, stack="bm25,s2net", **options).answer


def test_a_query_says_that_its_search_was_approximate(workspace):
    folder, documents = workspace
    result = answer(folder, documents[0].text)
    assert result.approximate == ("s2net",)
    assert result.to_json([])["approximate"] == ["s2net"]
    for path in folder.glob("engine/*/features/*/*/nearest.*"):
        path.unlink()
    exact = answer(folder, documents[0].text)
    assert exact.approximate == ()
    assert exact.ranking.ids == result.ranking.ids


def test_new_and_removed_documents_are_seen_without_a_new_index(workspace):
    folder, documents = workspace
    new = [Document("new", text=documents[5].text)]
    ingest(folder, new)
    assert "new" in answer(folder, documents[5].text).ranking.ids[:3]
    ingest(folder, [], delete=[documents[5].id])
    assert documents[5].id not in answer(folder, documents[5].text).ranking.ids


def index_path(folder):
    (path,) = folder.glob("engine/*/features/*/*/*nearest.*")
    return path


def test_an_index_that_cannot_be_read_leaves_searches_exact_until_the_next_encoding(workspace, caplog):
    folder, documents = workspace
    path = index_path(folder)
    path.write_bytes(path.read_bytes()[:100])
    opened = Workspace.open(folder)
    result = answer(opened, documents[0].text)
    assert result.approximate == ()
    assert documents[0].id in result.ranking.ids
    assert path.name in caplog.text
    encode(folder)
    assert answer(opened, documents[0].text).approximate == ("s2net",)


def test_the_folder_of_an_index_is_listed_again_only_after_a_change(workspace, monkeypatch):
    folder, documents = workspace
    listings = []
    find_index = snapshot.find_index
    monkeypatch.setattr(snapshot, "find_index", lambda path: listings.append(path) or find_index(path))
    opened = Workspace.open(folder)
    path = index_path(folder)
    now = time.time()
    os.utime(path.parent, (now, now))  # another change could follow in the same step of the clock
    assert answer(opened, documents[0].text).approximate == ("s2net",)
    assert answer(opened, documents[1].text).approximate == ("s2net",)
    assert len(listings) == 2
    os.utime(path.parent, (now - 10, now - 10))
    for document in documents[:3]:
        assert answer(opened, document.text).approximate == ("s2net",)
    assert len(listings) == 3
    path.unlink()
    assert answer(opened, documents[0].text).approximate == ()
    assert len(listings) == 4


@pytest.mark.parametrize("first", ["a", "b", "other"])
@pytest.mark.parametrize("sizes", [(0,), (0, 5), (5, 0, 7), (90, 90)])
def test_the_union_of_retrievers_has_each_row_once(sizes, first):
    rng = np.random.default_rng(0)
    rows = {name: rng.choice(100, size, replace=False) for name, size in zip("abc", sizes)}
    union, retrieved_by = _union(rows, first)
    assert sorted(union.tolist()) == np.unique(np.concatenate(list(rows.values()))).tolist()
    first_rows = rows.get(first, NOTHING)
    assert union[: len(first_rows)].tolist() == first_rows.tolist()
    assert list(retrieved_by) == list(rows)
    for name, is_found in retrieved_by.items():
        assert is_found.tolist() == np.isin(union, rows[name]).tolist()


@pytest.mark.parametrize("passages", [0, 2])
def test_few_rows_are_compared_as_exactly_as_many(monkeypatch, passages):
    """Also if the rows repeat, so that ties at the cut are decided by ids."""
    vectors = np.repeat(clustered(200), 4, axis=0)
    matrix = with_passages(vectors, passages) if passages else vectors
    index = approximate.ApproximateIndex(None, 0, passages)
    for query in queries_near(vectors):
        rows = index.search(matrix, query, 10, NOTHING, ids_of)
        with monkeypatch.context() as patch:
            patch.setattr(approximate, "_MAX_AT_ONCE", 0)
            assert index.search(matrix, query, 10, NOTHING, ids_of).tolist() == rows.tolist()
        assert len(rows) == 10


def test_an_interrupted_writer_leaves_no_file(workspace):
    folder, _ = workspace
    path = index_path(folder)
    path.with_name(f".{path.name}.0123456789ab.tmp").write_bytes(b"part of an index")
    encode(folder, force=True)
    assert index_path(folder) == path


def test_a_full_disk_is_reported_and_leaves_the_old_index(workspace, monkeypatch):
    folder, _ = workspace
    path = index_path(folder)
    before = path.read_bytes()

    def write(data):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = faiss.PyCallbackIOWriter(write)
    monkeypatch.setattr(faiss, "PyCallbackIOWriter", lambda write: writer)
    with pytest.raises(EngineError, match="the disk is full"):
        encode(folder, force=True)
    assert index_path(folder) == path
    assert path.read_bytes() == before


def test_documents_that_were_removed_before_an_encoding_need_no_new_index(workspace):
    folder, documents = workspace
    inode = index_path(folder).stat().st_ino
    new = [Document(f"new{i}", text=document.text) for i, document in enumerate(documents[:30])]
    ingest(folder, new, encode_features=False)
    ingest(folder, [], delete=[document.id for document in new], encode_features=False)
    encode(folder)
    assert index_path(folder).stat().st_ino == inode


def test_the_encoding_after_a_compaction_writes_an_index(workspace):
    folder, documents = workspace
    ingest(folder, [], delete=[document.id for document in documents[:150]])
    names = {path.name for path in folder.glob("engine/*/features/*/*/nearest.*")}
    assert "nearest.250.faiss" in names
    result = answer(folder, documents[200].text)
    assert result.approximate == ("s2net",)
    assert documents[200].id in result.ranking.ids[:3]
