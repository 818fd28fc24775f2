"""``rerank serve``: the HTTP service."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any

import click

from rerank.errors import NotInstalledError
from rerank.service.settings import Settings, check_exposure, check_names, read_tokens

from . import options
from .options import Command, option


def _option(spec: str, help: str, **about: Any) -> options.Option:
    """Make an option with the default of its setting."""
    name = spec.partition(" ")[0].lstrip("-").replace("-", "_")
    return option(spec, help, default=getattr(Settings, name), **about)


_limit = partial(_option, rare=True)
_SECONDS = options.Real(0, 3600, min_open=True)


_OPTIONS = (
    "Service",
    _option("--host TEXT", "Address to listen on."),
    _option("--port N", "Port; 0: any free port.", type=options.Whole(0, 65535)),
    _option("--workers N", "Number of processes."),
    _option("--threads N", "Requests that a process scores at the same time."),
    option("--stack STACK", "Stack of requests that do not name a stack. Default: the active stack."),
    option("--only NAME,...", "Endpoints: rerank, search, rerank_ids, hook. Default: all."),
    "Candidates",
    options.infer,
    "Access",
    option("--token-file FILE", "File with one bearer token per line. Default: RERANK_SERVICE_TOKEN."),
    option("--allow-host NAME...", "Host name of a service without a token. Repeatable.", dest="hosts"),
    option("--insecure", "Allow other machines to connect without a token."),
    option("--log-queries", "Write the words of queries to the log."),
    "Limits",
    _limit("--max-body N", "Largest body of a request, in bytes."),
    _limit("--max-candidates N", "Most documents of a request.", type=options.Whole(1, 100_000)),
    _limit("--max-encoded N", "Most documents to encode for a search.", type=options.Whole(0)),
    _limit("--max-requests N", "Most requests that a process accepts at the same time."),
    _limit("--max-connections N", "Most connections of a process."),
    _limit("--deadline SECONDS", "Time limit for an answer.", type=_SECONDS),
    _limit("--request-timeout SECONDS", "Time limit for each transfer.", type=_SECONDS),
    options.GENERAL,
    options.folder,
    options.as_json,
)


@click.command("serve", cls=Command, params=options.grouped(_OPTIONS))
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
