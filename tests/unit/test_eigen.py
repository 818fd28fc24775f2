"""The largest eigenvectors beside SciPy's, and that other threads go on meanwhile."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import scipy.linalg

from rerank.errors import TrainingError
from rerank.training.projection.eigen import largest, solved


@pytest.mark.parametrize(("size", "k"), [(1, 1), (5, 5), (5, 9), (40, 7), (300, 20)])
@pytest.mark.parametrize("general", [False, True])
def test_as_scipy(size, k, general):
    rng = np.random.default_rng(size)
    A, B = rng.normal(size=(2, size, size))
    A, B = A + A.T, B @ B.T + size * np.eye(size) if general else None
    values, vectors = largest(A.copy(), k, None if B is None else B.copy())
    first = max(0, size - k)
    theirs, their_vectors = scipy.linalg.eigh(A, B, subset_by_index=[first, size - 1])
    assert values == pytest.approx(theirs[::-1])
    assert np.abs(vectors) == pytest.approx(np.abs(their_vectors[:, ::-1]), abs=1e-8)


def test_triangles_are_solved_in_parts():
    rng = np.random.default_rng(0)
    root = np.tril(rng.normal(size=(30, 30))) + 30 * np.eye(30)
    right = rng.normal(size=(30, 600))
    assert root @ solved(root, right) == pytest.approx(right)
    assert root.T @ solved(root, right, transposed=True) == pytest.approx(right)


def test_what_is_not_finite_is_told():
    with pytest.raises(TrainingError, match="not finite"):
        largest(np.full((3, 3), np.nan), 2)


def test_other_threads_go_on():
    """So progress is shown, and ctrl-C heard: SciPy's own function lets no other thread run."""
    seen, ended = [], threading.Event()

    def watch():
        while not ended.wait(0.005):
            seen.append(time.monotonic())

    A = np.random.default_rng(0).normal(size=(1200, 1200))
    A = A + A.T
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        begin = time.monotonic()
        largest(A, 100)
        end = time.monotonic()
    finally:
        ended.set()
        thread.join()
    assert sum(begin < moment < end for moment in seen) > 5
