"""``rerank serve``: the HTTP service."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from rerank.errors import NotInstalledError

from . import options


@click.command("serve")
@options.common
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0: any that is free."
)
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Requests that each process scores at the same time.",
)
@click.option(
    "--stack",
    metavar="STACK",
    help="Of requests that name none: signals, or a stack file. Default: the stack in use.",
)
@click.option(
    "--token-file", metavar="FILE", help="Bearer token that requests must bring; also RERANK_SERVICE_TOKEN."
)
@click.option(
    "--only",
    metavar="NAMES",
    help="Serve only these endpoints: rerank, search, rerank_ids, hook; joined by commas.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name under which a service without a token is asked; addresses and localhost always are.",
)
@click.option("--insecure", is_flag=True, help="Listen where others can reach it without a token.")
@click.option(
    "--max-body",
    type=click.IntRange(min=1),
    default=16 * 2**20,
    show_default=True,
    metavar="BYTES",
    help="Longest body of a request.",
)
@click.option(
    "--max-candidates",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    metavar="N",
    help="Most documents, hits or depth of a request.",
)
@click.option(
    "--max-encoded",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    metavar="N",
    help="Documents without stored features that one search of the hook encodes; others keep their place.",
)
@click.option(
    "--max-requests",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    metavar="N",
    help="Most requests that each process has in hand.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True, max=3600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest time to an answer.",
)
@click.option(
    "--request-timeout",
    type=click.FloatRange(min=0, min_open=True, max=3600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest time for a request's headers to come, for its body, and for its answer to be taken.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    metavar="N",
    help="Most connections of each process.",
)
@click.option("--log-queries", is_flag=True, help="Write the words of queries to the log.")
@options.infer
def command(
    folder: str,
    as_json: bool,
    token_file: str | None,
    insecure: bool,
    infer: bool,
    only: str | None,
    **given: Any,
) -> None:
    """Answer over HTTP until ctrl-C or SIGTERM.

    Newly trained rankers and tuned stacks are loaded within seconds; SIGHUP loads them at once.
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
