"""Clients that send requests without a pause."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def run_clients(ask: Callable[[int, threading.Event], object], clients: int) -> Iterator[None]:
    """Run clients until the block ends, also after an exception. Then raise exceptions of clients.

    ask: gets the number of the client and an event, and continues until the event is set.
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
