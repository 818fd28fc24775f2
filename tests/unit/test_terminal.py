"""What the terminal shows of long work, and how soon ctrl-C is acted on."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import time
import warnings

import pytest
from rerank.cli import output
from rerank.cli.program import show_once

from rerank.engines.opensearch.trust import SecretWarning
from rerank.errors import setting_hint

LONG_CALL = """
import hashlib, sys
from rerank.cli import output
from rerank.cli.program import _act_on_interrupts
_act_on_interrupts()
bar = output.Bar(quiet=True)
bar.start("work", 9, sys.argv[1])
print("ready", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # minutes, in which no signal is heard
"""


@pytest.mark.parametrize("unit", ["", "step"], ids=["nothing to keep", "after this step"])
def test_ctrl_c_is_acted_on_within_a_long_call(unit):
    with subprocess.Popen(
        [sys.executable, "-c", LONG_CALL, unit], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            time.sleep(1)  # until it is within the call
            process.send_signal(signal.SIGINT)
            assert process.stderr.readline() == "\n"
            line = process.stderr.readline()
            if unit:
                assert line == "rerank: interrupted: ends after this step; ctrl-C again ends it now\n"
                assert process.poll() is None
                process.send_signal(signal.SIGINT)
            else:
                assert line == "rerank: interrupted\n"
            assert process.wait(20) == 130
        finally:
            process.kill()


IMPORTS = """
import signal, sys, time
class Slow:
    def find_spec(self, name, path, target=None):
        if name != module:
            return None
        print("ready", flush=True)
        try:
            time.sleep(20)
        except BaseException:
            if raises:
                raise
        time.sleep(20)
module, *raises = sys.argv[1:]
sys.meta_path.insert(0, Slow())
from rerank.cli import main
sys.argv = ["rerank", "status"]
main()
"""


@pytest.mark.parametrize(
    "module", [["click", "raises"], ["rerank.cli.status", "raises"], ["rerank.cli.status"]], ids=" ".join
)
def test_ctrl_c_is_acted_on_while_modules_are_imported(module):
    """From the first one on, and also where one of them catches everything."""
    with subprocess.Popen(
        [sys.executable, "-c", IMPORTS, *module], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(15) == 130
            assert process.stderr.read().strip() == "rerank: interrupted"
        finally:
            process.kill()


WORK = """
import sys
from rerank.cli import output
from rerank.cli.program import _act_on_interrupts
_act_on_interrupts()
bar = output.Bar(quiet=True)
bar.start("work")
import numpy as np
rng = np.random.default_rng(0)
try:
    {}
except KeyboardInterrupt:
    sys.exit(130)
"""
PHASES = {
    # Each takes minutes, and says when it begins.
    "eigenvectors": """
    from rerank.training.projection.eigen import largest
    matrix = rng.normal(size=(6000, 6000))
    print("ready", flush=True)
    largest(matrix, 200)
    """,
    "word2vec": """
    from rerank.training.cnn.embeddings import word2vec
    class Texts(list):
        def __iter__(self):
            print("ready", flush=True)
            return super().__iter__()
    word2vec(Texts([list("abcdefgh")] * 20000), size=300, seed=0, epochs=1000)
    """,
    "weights": """
    from rerank import Qrels
    from rerank.scoring.table import ScoreTable
    from rerank.tuning.search import tune
    ids = [str(i) for i in range(1000)]
    table = ScoreTable.build(list("abcde"), ((f"q{i}", ids, rng.random((1000, 5))) for i in range(500)))
    print("ready", flush=True)
    tune(table, Qrels((f"q{i}", "5", 1) for i in range(500)), first_stage="a")
    """,
}


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_is_acted_on_in_every_phase(phase):
    with subprocess.Popen(
        [sys.executable, "-c", WORK.format(PHASES[phase].strip())],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.5)  # until it is within the work
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130, process.stderr.read()
        finally:
            process.kill()


def test_what_others_name_steers_no_terminal(monkeypatch):
    """Bars have names of rankers and files in them, warnings what a server says."""

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    bar = output.Bar()
    bar.start("encode \x1b]0;owned\x07", 10, "document")
    bar.show(ranker="\x9b31m")
    bar.advance(10)
    bar.finish()
    with warnings.catch_warnings():
        monkeypatch.setattr(warnings, "showwarning", lambda *_: None)
        show_once()
        warnings.warn(SecretWarning("said by a server: \x1b[2J"), stacklevel=1)
    shown = screen.getvalue()
    assert "encode ␛]0;owned␇" in shown
    assert "warning: said by a server: ␛[2J" in shown
    assert not re.search("\x1b[^\\[]|\x07|\x9b|\x1b\\[2J", shown)  # of escapes, only the bar's own


def test_a_log_tells_how_far_it_is(monkeypatch):
    bar = output.Bar()
    bar.start("encode", 1200, "document")
    monkeypatch.setattr(output, "time", type("Clock", (), {"monotonic": lambda: 160.0}))
    bar._begun = bar._counted_from = 100.0
    assert bar._so_far() == "encode: 60 s so far"
    bar._foretold = True
    bar.advance(300)
    assert bar._so_far() == "encode: 300 of 1,200 documents in 60 s, about 3 min left"
    bar.finish()


def test_what_a_step_will_take_is_told_before_it_counts(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(output, "time", type("Clock", (), {"monotonic": lambda: now[0]}))
    bar = output.Bar()
    bar.start("fit opca")
    bar.expect(200.0)
    bar.expect(190.0)  # told once
    now[0] += 60
    assert bar._so_far() == "fit opca: 60 s so far, about 2 min left"
    now[0] += 140
    assert bar._so_far() == "fit opca: 3 min so far, longer than foretold"
    bar.finish()
    bar.start("s2net", 100, "iteration")
    bar.expect(110.0)
    assert bar._so_far() == "s2net: 0 s so far, about 2 min left"
    now[0] += 4
    bar.advance(2)
    assert bar._so_far() == "s2net: 2 of 100 iterations in 4 s, about 3 min left"
    bar.finish()
    assert re.fullmatch(r"fit opca: about 3 min on \d+ cores?\n", capsys.readouterr().err)


def test_a_bar_that_counts_nothing_says_what_is_left(monkeypatch):
    """On a terminal, where it is drawn every second."""
    import io

    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    bar = output.Bar()
    bar.start("fit opca")
    bar.expect(100.0)
    bar._redraw()
    bar.finish()
    assert "fit opca: 00:00, about 2 min left" in screen.getvalue()


def test_long_work_is_foretold_once(monkeypatch, capsys):
    bar = output.Bar()
    bar.start("train text", 100, "batch")
    monkeypatch.setattr(output, "time", type("Clock", (), {"monotonic": lambda: 115.0}))
    bar._begun = bar._counted_from = 100.0
    bar.shorter(setting_hint("epochs", 3), 0.25)
    bar.advance(5)
    bar.advance(5)
    bar.finish()
    said = r"train text: about 5 min on \d+ cores?; --epochs 3 takes 71 s\n"
    assert re.fullmatch(said, capsys.readouterr().err)


def test_a_step_that_counts_nothing_is_in_the_log(monkeypatch, capsys):
    monkeypatch.setattr(output, "TOLD", 0.0)
    bar = output.Bar()
    bar.start("word2vec")
    end = time.monotonic() + 20
    found = ""
    while not found and time.monotonic() < end:
        time.sleep(0.05)
        found = capsys.readouterr().err
    bar.finish()
    assert re.fullmatch(r"word2vec: \d s so far\n", found)
