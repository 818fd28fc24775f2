"""Imports at the start of a command, and the names of the command."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.end_to_end.test_cli import STACK
from tests.support.processes import output

WITHOUT_SCIPY = ("torch", "gensim", "transformers", "sklearn")
HEAVY = (*WITHOUT_SCIPY, "scipy")
CHECK = """
import sys
import time
from contextlib import suppress
{code}
print("LOADED", [name for name in {names} if name in sys.modules])
"""


def loaded_packages(code, names=HEAVY):
    return output(sys.executable, "-c", CHECK.format(code=code, names=names)).splitlines()[-1]


def commands(*commands):
    return "import rerank.cli\n" + "\n".join(
        f"sys.argv = {['rerank', *map(str, command)]!r}\nwith suppress(SystemExit): rerank.cli.main()"
        for command in commands
    )


def test_import_and_help_load_no_heavy_packages():
    assert loaded_packages("import rerank; rerank.Document('1'); rerank.Qrels()") == "LOADED []"
    assert loaded_packages(commands(["--help"], ["--version"], [], ["nonsense"])) == "LOADED []"


def test_the_help_of_all_commands_loads_no_heavy_packages():
    from rerank.cli.program import COMMANDS

    assert loaded_packages(commands(*([name, "--help"] for name in COMMANDS)), WITHOUT_SCIPY) == "LOADED []"


def test_query_tune_evaluate_ingest_and_encode_do_not_load_torch(write_lines, small, workspace):
    new = write_lines(workspace.parent / "new.jsonl", [{"_id": "new", "title": "Quokkas"}])
    files = ["--queries", small.queries, "--qrels", small.dev]
    given = [
        ["query", "cells", "--stack", STACK, "--explain"],
        ["evaluate", "--stack", STACK, *files],
        ["tune", "--stack", "tfidf,meta", *files],
        ["ingest", new],
        ["encode"],
        ["status"],
    ]
    code = commands(*([*command, "-w", workspace] for command in given))
    assert loaded_packages(code.replace("with suppress(SystemExit): ", ""), WITHOUT_SCIPY) == "LOADED []"


def test_the_module_can_be_run_and_prints_the_version(spawn):
    shown = output(sys.executable, "-m", "rerank.cli", "--version")
    assert re.fullmatch(r"rerank, version \d+\.\d+\S*\n", shown), shown
    assert spawn("--version").out == shown


def test_a_closed_output_pipe_causes_no_error_message(script, trained):
    with subprocess.Popen(
        [*script, "query", "cells", "-w", str(trained), "-k", "300", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(300) != 0
