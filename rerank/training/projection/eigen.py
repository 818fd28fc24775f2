"""The largest eigenvectors of dense matrices, by LAPACK without Python's lock.

SciPy's functions hold the lock as long as they compute, a minute for 6,000 columns: until then no progress is
shown and no ctrl-C heard. NumPy's let go of it, but compute all vectors, which takes twice the time of a few.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError

Float = NDArray[np.float64]

COLUMNS = 256
"""Columns that are solved for in one call, which holds the lock."""


def largest(A: Float, k: int, B: Float | None = None) -> tuple[Float, Float]:
    """The k largest eigenvalues of A v = lambda B v, largest first, and their vectors, (n, k), v^T B v = 1.

    A: symmetric; B: positive definite, the identity unless given. Both may be overwritten.

    >>> values, vectors = largest(np.diag([1.0, 3.0, 2.0]), 2)
    >>> values.tolist(), np.abs(vectors).tolist()
    ([3.0, 2.0], [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> largest(np.diag([1.0, 3.0]), 1, np.diag([1.0, 4.0]))[0].tolist()
    [1.0]
    """
    if B is None:
        return _symmetric(A, k)
    root = np.asarray(np.linalg.cholesky(B), dtype=np.float64)
    inner = solved(root, A)
    values, vectors = _symmetric(solved(root, np.ascontiguousarray(inner.T)), k)
    return values, solved(root, vectors, transposed=True)


def solved(root: Float, right: Float, *, transposed: bool = False) -> Float:
    """X of L X = R, or of L^T X = R: (n, n) lower triangle, (n, m) -> (n, m), some columns at a time."""
    from scipy.linalg import solve_triangular

    found = np.empty_like(right)
    for begin in range(0, right.shape[1], COLUMNS):
        part = slice(begin, begin + COLUMNS)
        found[:, part] = solve_triangular(
            root, right[:, part], trans="T" if transposed else "N", lower=True, check_finite=False
        )
    return found


def _symmetric(A: Float, k: int) -> tuple[Float, Float]:
    """LAPACK's dsyevr, for the k largest."""
    size = len(A)
    k = min(k, size)
    matrix = np.asfortranarray(A, dtype=np.float64)
    values, vectors = np.zeros(size), np.zeros((size, k), order="F")
    support = np.zeros(2 * max(1, k), dtype=np.int32)
    found, failed = ctypes.c_int(), ctypes.c_int()

    def call(work: Float, lengths: tuple[int, int], integers: NDArray[np.int32]) -> None:
        number, real = ctypes.c_int, ctypes.c_double
        _function("dsyevr", 21)(
            *(ctypes.byref(ctypes.c_char(one)) for one in (b"V", b"I", b"L")),
            ctypes.byref(number(size)),
            matrix.ctypes.data_as(ctypes.c_void_p),
            ctypes.byref(number(max(1, size))),
            *(ctypes.byref(real(0.0)) for _ in range(2)),  # a range of values: not read
            ctypes.byref(number(size - k + 1)),
            ctypes.byref(number(size)),
            ctypes.byref(real(0.0)),
            ctypes.byref(found),
            values.ctypes.data_as(ctypes.c_void_p),
            vectors.ctypes.data_as(ctypes.c_void_p),
            ctypes.byref(number(max(1, size))),
            support.ctypes.data_as(ctypes.c_void_p),
            work.ctypes.data_as(ctypes.c_void_p),
            ctypes.byref(number(lengths[0])),
            integers.ctypes.data_as(ctypes.c_void_p),
            ctypes.byref(number(lengths[1])),
            ctypes.byref(failed),
        )

    asked, asked_integers = np.zeros(1), np.zeros(1, dtype=np.int32)
    call(asked, (-1, -1), asked_integers)  # how much memory it wants
    lengths = int(asked[0]), int(asked_integers[0])
    call(np.zeros(lengths[0]), lengths, np.zeros(lengths[1], dtype=np.int32))
    if failed.value or found.value < k:
        raise TrainingError("the eigenvectors are not found: the matrix may hold numbers that are not finite")
    return values[:k][::-1].copy(), np.ascontiguousarray(vectors[:, ::-1])


@cache
def _function(name: str, arguments: int) -> Callable[..., Any]:
    """A function of the LAPACK that SciPy brings along, called without the lock."""
    from scipy.linalg import cython_lapack

    capsule = cython_lapack.__pyx_capi__[name]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    pointer = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(pointer)
