"""Options and arguments that name a result: no command writes a file named ``-``."""

from __future__ import annotations

import re

import click
import pytest
from rerank.cli.options import OUTPUT
from rerank.cli.program import COMMANDS, cli

from rerank.common.errors import UsageError
from rerank.service.ubi_log import UbiLog


def commands(group: click.Group, *path: str):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


ALL = dict(commands(cli))


def names_output(parameter: click.Parameter) -> bool:
    """Return whether a parameter names a file or a folder that the command writes."""
    if isinstance(parameter, click.Argument):
        return parameter.metavar == "OUT"
    assert isinstance(parameter, click.Option)
    is_path = parameter.metavar in ("FILE", "DIR") and parameter.name != "folder"
    return is_path and bool(
        re.match(r"Write|Also write|File of the (stack|pool)|Folder for", parameter.help or "")
    )


OUTPUTS = [(path, one) for path, command in ALL.items() for one in command.params if names_output(one)]


def test_outputs_are_recognized():
    assert {path[0] for path in ALL} == set(COMMANDS)
    names = {(" ".join(path), one.name) for path, one in OUTPUTS}
    assert {("judge convert", "target"), ("tune", "out"), ("evaluate", "save_run")} <= names
    assert len(names) >= 8


@pytest.mark.parametrize(("path", "parameter"), OUTPUTS)
def test_a_dash_is_not_the_name_of_a_result(path, parameter):
    assert parameter.type is OUTPUT, (path, parameter.name)


def test_a_dash_is_refused_in_one_line(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--queries", "queries.jsonl", "--to", "trec")
    run("judge", "convert", "qrels.tsv", "-", *options).fails(2, "OUT", "not written to standard output")
    run("judge", "pool", "--stack", "bm25", "--queries", "q", "--out", "-").fails(
        2, "--out", "name of a file"
    )
    with pytest.raises(UsageError, match=r"--ubi-log -: .* give the name of a file"):
        UbiLog("-")
    assert not list(tmp_path.iterdir())
