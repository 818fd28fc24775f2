"""``rerank serve``: run the HTTP service."""

from __future__ import annotations

import json
import os

import click

from rerank.common.config import build, values_of
from rerank.common.errors import NotInstalledError
from rerank.service.settings import ServeOptions, Settings, check_exposure, read_tokens

from .config_options import given_settings, setting_options
from .options import Command, json_option, option, workspace_option

_CONFIGURATIONS = {"serve": ServeOptions}


@click.command("serve", cls=Command, params=[*setting_options(_CONFIGURATIONS)])
@option(
    "--token-file",
    metavar="FILE",
    group="Access",
    help="File with one bearer token per line. Default: RERANK_SERVICE_TOKEN.",
)
@option("--insecure", is_flag=True, group="Access", help="Allow other machines to connect without a token.")
@workspace_option
@json_option
def command(folder: str, token_file: str | None, insecure: bool, as_json: bool, **settings: object) -> None:
    """Run the HTTP service until Ctrl-C or SIGTERM. New rankers and stacks are loaded within seconds."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")  # before NumPy is imported: requests share the cores
    try:
        from rerank.service.server import serve
    except ModuleNotFoundError as error:
        raise NotInstalledError.of(error, "the service") or error from error

    serve_options = build(ServeOptions, given_settings(settings, _CONFIGURATIONS))
    tokens = read_tokens(token_file)
    check_exposure(serve_options.host, bool(tokens), insecure)

    def print_url(url: str) -> None:
        if as_json:
            click.echo(json.dumps({"url": url, "pid": os.getpid()}))
            return
        click.echo(f"listening on {url}")
        if serve_options.judge is not None:
            click.echo(f"judge at {url}/judge{'#TOKEN, with the token of the judge' if tokens else ''}")

    serve(Settings(folder=folder, tokens=tokens, **values_of(serve_options)), print_url)
