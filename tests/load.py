"""Clients that ask without a pause, while something else happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def without_pause(ask: Callable[[int, threading.Event], object], clients: int) -> Iterator[None]:
    """Until the block ends, whether well or not; what a client raises is raised then.

    ask: gets the client's number, and goes on until the event is set.
    """
    over = threading.Event()
    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask, number, over) for number in range(clients)]
        try:
            yield
        finally:
            over.set()
    for one in asking:
        one.result()
