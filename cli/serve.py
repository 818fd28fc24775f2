"""``rerank serve``: the HTTP service."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from rerank.config import build, values_of
from rerank.errors import NotInstalledError
from rerank.service.settings import ServeOptions, Settings, check_exposure, read_tokens

from . import config_options, options
from .options import option

_FAMILIES = {"serve": ServeOptions}
_OPTIONS = (
    "Access",
    option("--token-file FILE", "File with one bearer token per line. Default: RERANK_SERVICE_TOKEN."),
    option("--insecure", "Allow other machines to connect without a token."),
    options.GENERAL,
    options.folder,
    options.as_json,
)


@click.command(
    "serve", cls=options.Command, params=[*config_options.options_for(_FAMILIES), *options.grouped(_OPTIONS)]
)
def command(folder: str, as_json: bool, token_file: str | None, insecure: bool, **given: Any) -> None:
    """Run the HTTP service until Ctrl-C or SIGTERM. New rankers and stacks are loaded within seconds."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")  # before NumPy is imported: requests share the cores
    try:
        from rerank.service.server import serve
    except ModuleNotFoundError as error:
        raise NotInstalledError.of(error, "the service") or error from error

    chosen, tokens = build(ServeOptions, config_options.settings(given, _FAMILIES)), read_tokens(token_file)
    check_exposure(chosen.host, bool(tokens), insecure)

    def listening(url: str) -> None:
        click.echo(json.dumps({"url": url, "pid": os.getpid()}) if as_json else f"listening on {url}")

    serve(Settings(folder=folder, tokens=tokens, **values_of(chosen)), listening)
