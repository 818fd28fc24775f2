"""``rerank serve``: the HTTP service."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import click

from rerank.errors import NotInstalledError

from . import options


def _limit(
    name: str, default: float, help: str, **more: Any
) -> Callable[[options.Function], options.Function]:
    """Declare a rare limit of requests."""
    more.setdefault("type", options.Number(1))
    return options.option(name, default=default, group="Limits", rare=True, help=help, **more)


_SECONDS = {"type": options.Number(above=0, most=3600, kind=float), "metavar": "SECONDS"}


@click.command("serve", cls=options.Command)
@options.option("--host", default="127.0.0.1", group="Service", help="Address to listen on.")
@options.option(
    "--port", type=options.Number(0, 65535), default=8765, group="Service", help="Port; 0: any free port."
)
@options.option("--workers", type=options.Number(1), default=1, group="Service", help="Number of processes.")
@options.option(
    "--threads",
    type=options.Number(1),
    default=4,
    group="Service",
    help="Requests that a process scores at the same time.",
)
@options.option(
    "--stack",
    metavar="STACK",
    group="Service",
    help="Stack of requests that do not name a stack. Default: the active stack.",
)
@options.option(
    "--only",
    metavar="NAME,...",
    group="Service",
    help="Endpoints: rerank, search, rerank_ids, hook. Default: all.",
)
@options.infer
@options.option(
    "--token-file",
    metavar="FILE",
    group="Access",
    help="File with one bearer token per line; every request must send one. Default: RERANK_SERVICE_TOKEN.",
)
@options.repeatable(
    "--allow-host",
    "hosts",
    metavar="NAME",
    group="Access",
    help="Host name of a service without a token. Repeatable. Default: localhost and addresses.",
)
@options.flag("--insecure", group="Access", help="Allow other machines to connect without a token.")
@options.flag("--log-queries", group="Access", help="Write the words of queries to the log.")
@_limit("--max-body", 16 * 2**20, "Largest body of a request, in bytes.")
@_limit(
    "--max-candidates",
    1000,
    "Most documents of a request, and the largest depth.",
    type=options.Number(1, 100_000),
)
@_limit(
    "--max-encoded",
    4,
    "Most documents without stored features that a search of the hook encodes.",
    type=options.Number(0),
)
@_limit("--max-requests", 64, "Most requests that a process accepts at the same time.")
@_limit("--max-connections", 1024, "Most connections of a process.")
@_limit("--deadline", 10.0, "Time limit for an answer.", **_SECONDS)
@_limit(
    "--request-timeout",
    10.0,
    "Time limit for receiving the headers, receiving the body, and sending the answer.",
    **_SECONDS,
)
@options.common
def command(
    folder: str,
    as_json: bool,
    token_file: str | None,
    insecure: bool,
    infer: bool,
    only: str | None,
    **given: Any,
) -> None:
    """Run the HTTP service until Ctrl-C or SIGTERM.

    New rankers and stacks are loaded within seconds. SIGHUP loads them immediately.
    """
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")  # before NumPy is imported: requests share the cores
    try:
        from rerank.service.server import serve
        from rerank.service.settings import Settings, check_exposure, check_names, read_tokens
    except ModuleNotFoundError as error:
        raise NotInstalledError.of(error, "the service") or error from error

    tokens = read_tokens(token_file)
    check_exposure(given["host"], bool(tokens), insecure)
    named = tuple(name.strip() for name in only.split(",")) if only is not None else ()
    check_names(named, "--only")
    settings = Settings(folder=folder, tokens=tokens, infer_categories=infer, only=named, **given)

    def listening(url: str) -> None:
        click.echo(json.dumps({"url": url, "pid": os.getpid()}) if as_json else f"listening on {url}")

    serve(settings, listening)
