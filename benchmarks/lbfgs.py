"""Compare our L-BFGS with SciPy's on a quadratic loss over a single-precision matrix: time and memory.

    python benchmarks/lbfgs.py [--rows 20000] [--columns 100] [--iterations 40]

Each method runs in a separate process, so that their peaks of memory are independent.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time

import numpy as np

from rerank.rankers.projection.s2net import minimize


def measure(method: str, rows: int, columns: int, iterations: int) -> tuple[float, float, int]:
    """Return the loss, the seconds and the increase of peak memory in MiB."""
    rng, shape = np.random.default_rng(0), (rows, columns)
    scale = np.geomspace(1, 1e3, rows * columns, dtype=np.float32).reshape(shape)
    target = rng.standard_normal(shape, dtype=np.float32)

    def loss(point):
        rest = point - target
        return float(0.5 * (scale * rest * rest).sum(dtype=np.float64)), scale * rest

    def flat(point):
        found, gradient = loss(point.reshape(shape).astype(np.float32))
        return found, gradient.ravel().astype(np.float64)

    if method == "ours":
        before, begin = peak(), time.perf_counter()
        steps = minimize(loss, np.zeros(shape, np.float32))
        found = [loss for (_, loss), _ in zip(steps, range(iterations))][-1]
    else:
        from scipy import optimize

        before, begin = peak(), time.perf_counter()
        options = {"maxiter": iterations, "maxcor": 10}
        start = np.zeros(rows * columns)
        found = optimize.minimize(flat, start, jac=True, method="L-BFGS-B", options=options).fun
    return found, time.perf_counter() - begin, (peak() - before) // 1024


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=40)
    args = parser.parse_args()
    for method in ("ours", "SciPy"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found, seconds, mib = pool.apply(measure, (method, args.rows, args.columns, args.iterations))
        print(f"{method}: loss {found:.0f}, {seconds:.2f} s, {mib} MiB")


if __name__ == "__main__":
    main()
