"""Kill commands at random moments with kill -9 and check that no data is lost or half-written.

    nice -n 15 python benchmarks/robustness/kills.py --kills 200

Each round runs one command on a small workspace: ingest, encode, train of each family, tune, install, or
switch of the stack in use. The benchmark kills the command and all its child processes after a
random amount of processor time, between 0 and the time of a complete run. (On a busy machine, wall-clock
time does not show the progress of a command.) Commands are forked from a process that has imported all
modules, so that a kill hits the work and not the imports.

Another process searches the workspace during each round; it must not fail. Then the benchmark opens the
workspace. Documents, rankers and stacks must equal either the state before the command or its result. The
next write completes the work: then a search must find the documents that a new engine with the same documents
finds, with the same tf-idf scores, and each stored feature must be what its ranker computes. Every tenth
round also runs the same command again to its end.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.common.processes import processor
from rerank import Query, RerankError, Workspace
from rerank.engines.local import LocalEngine
from rerank.engines.search_request import SearchRequest
from rerank.rankers.base import Ranker
from rerank.workflows.demo import COLLECTION

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["rerank.cli", "torch", "transformers", "tantivy", "scipy.sparse"])
SIZE = 150
TRAINED = {"train cnn": "text", "train projection": "s2net", "train dense": "dense"}
NAMES = ("ingest", "encode", "train cnn", "train projection", "train dense", "tune", "install", "switch")
RETRY = 10  # every tenth round runs its command again to the end


class Lost(Exception):
    """Data is missing or half-written."""


class Rounds:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.workspace, self.random = folder, folder / "ws", random.Random(seed)
        with gzip.open(COLLECTION / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
            self.documents: list[dict[str, Any]] = [json.loads(line) for line in lines][:SIZE]
        for i, document in enumerate(self.documents):  # for dense, which learns from links
            document["links"] = [self.documents[(i + step) % SIZE]["_id"] for step in (1, 2, 5)]
        ids = {document["_id"] for document in self.documents}
        for split in ("train", "dev"):
            rows = (COLLECTION / "qrels" / f"{split}.tsv").read_text("utf-8").splitlines()
            kept = [row for row in rows[1:] if row.split("\t")[1] in ids]
            (folder / f"{split}.tsv").write_text("\n".join([rows[0], *kept]) + "\n", "utf-8")
        shutil.copyfile(COLLECTION / "queries.jsonl.gz", folder / "queries.jsonl.gz")
        self.rounds = 0
        self.write(0)

    def write(self, state: int) -> dict[str, str]:
        """Write a state of the collection and return its texts. In each state other documents change."""
        rows = []
        for i, document in enumerate(self.documents):
            mark = f" state{state}" if i % 3 == state % 3 else ""
            rows.append({**document, "text": document["text"] + mark})
        lines = [json.dumps(row) + "\n" for row in rows]
        (self.folder / "corpus.jsonl").write_text("".join(lines), "utf-8")
        return {row["_id"]: row["text"] for row in rows}

    def command(self, name: str) -> list[str]:
        if name in ("install", "switch"):
            return [name, str(self.workspace)]
        folder = self.folder
        seed = f"--seed {self.random.randrange(1000)}"
        files = f"--queries {folder}/queries.jsonl.gz --qrels"
        judged = f"{files} {folder}/train.tsv --dev-qrels {folder}/dev.tsv {seed}"
        sizes = "--steps 4 --batch 8 --passage-tokens 32"
        commands = {
            "ingest": f"ingest {folder}/corpus.jsonl",
            "encode": "encode",
            "train cnn": f"train text {judged} --epochs 1",
            "train projection": f"train s2net {judged} --dim 20",
            "train dense": f"train dense --model {folder}/tiny {sizes} --restart {seed}",
            "tune": f"tune --stack bm25,text {files} {folder}/dev.tsv {seed}",
        }
        return [*commands[name].split(), "-w", str(self.workspace)]

    def run(self, command: list[str], kill_after: float | None = None) -> float | None:
        """Run a command; kill it after ``kill_after`` CPU seconds. Returns CPU seconds, None if killed."""
        said = self.folder / "said"
        process = FORKS.Process(target=act, args=(command, str(said)))
        process.start()
        used = 0.0
        while process.is_alive():
            with suppress(OSError):  # the process has ended
                used = max(used, processor(process.pid))
            if kill_after is not None and used >= kill_after:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                    process.join()
                    return None
            process.join(0.002)
        if process.exitcode:
            out = said.read_text("utf-8", "replace").strip()
            raise Lost(f"{' '.join(command[:4])} ended with {process.exitcode}: {out[-600:]}")
        return used

    def look(self) -> dict[str, Any]:
        """Return the contents of the workspace. Opening it completes or reverts interrupted work."""
        workspace = Workspace.open(self.workspace)
        texts = {document.id: document.text for document in workspace.engine.documents()}
        for word, stage in product(("cell", "protein"), ("bm25", "tfidf")):
            candidates = workspace.engine.find(SearchRequest(word, first_stage=stage, depth=SIZE))
            if not texts.keys() >= {*candidates.ids}:
                raise Lost(f"{stage} returns documents that the workspace does not contain")
        rankers = {name: workspace.ranker(name).version for name in workspace.trained()}
        for name in rankers:
            stack = workspace.stack(f"bm25*0.5 + {name}*0.5")
            workspace.pipeline(stack.signals).answer(Query("q", "how do bacteria become resistant"), stack)
        stacks = {path.name: path.read_bytes() for path in (self.workspace / "stacks").glob("*.json")}
        for path in (self.workspace / "stacks").glob("*.json"):
            workspace.stack(str(path))
        used = workspace.releases.stack
        if used is not None and {**used.versions, **workspace.versions(used)} != workspace.versions(used):
            raise Lost(f"the stack needs {used.versions}, but the workspace has {workspace.versions(used)}")
        workspace.search("cell")  # with the stack in use
        workspace.engine.close()
        return {"texts": texts, "rankers": rankers, "stacks": stacks, "used": used}

    @contextmanager
    def reader(self) -> Iterator[None]:
        """Search the workspace in another process. Raises Lost if a search fails."""
        stop = FORKS.Event()
        process = FORKS.Process(target=search_until, args=(stop, str(self.workspace)))
        process.start()
        yield
        stop.set()
        process.join()
        if process.exitcode:
            raise Lost(f"a reader ended with {process.exitcode}")

    def compare(self) -> None:
        """Complete interrupted work, and compare it with a new engine. Raises Lost for a difference."""
        workspace = Workspace.open(self.workspace)
        engine = workspace.engine
        engine.write([])
        with tempfile.TemporaryDirectory() as scratch:
            fresh = LocalEngine.create(Path(scratch) / "engine", engine.lang)
            fresh.write(engine.documents())
            texts = ["cell", "protein structure", *(f"state{n}" for n in range(self.rounds + 1))]
            for text, stage in product(texts, ("bm25", "tfidf")):
                request = SearchRequest(text, first_stage=stage, depth=SIZE)
                stored = engine.find(request)
                expected = fresh.find(request)
                if set(stored.ids) != set(expected.ids):
                    raise Lost(f"{stage} does not find the documents with {text!r}")
                # BM25 counts replaced documents until they are compacted.
                if stage == "tfidf" and not np.allclose(stored.scores, expected.scores, atol=1e-6):
                    raise Lost(f"other tf-idf scores for {text!r}")
            fresh.close()
        for name in workspace.trained():
            self.compare_features(workspace, workspace.ranker(name))
        engine.close()

    def compare_features(self, workspace: Workspace, ranker: Ranker) -> None:
        """Compare the stored features of a ranker with new ones. Missing features are no error."""
        features = {ranker.name: ranker.version}
        request = SearchRequest("cell", "bm25", ids=workspace.engine.ids(), features=features)
        candidates = workspace.engine.find(request)
        rows = np.flatnonzero(~candidates.missing[ranker.name])
        if not len(rows):
            return
        documents = workspace.engine.get([candidates.ids[row] for row in rows.tolist()])
        expected = ranker.encode_documents([document for document in documents if document is not None])
        stored = candidates.features[ranker.name][rows]
        if not np.allclose(stored.astype(np.float64), expected.astype(np.float64), atol=2.0**-6):
            raise Lost(f"{ranker.name}: a stored feature is not the feature of its document")

    def prepare(self) -> None:
        """Create a complete workspace and measure the CPU time of each command."""
        self.run(self.command("ingest"))
        tiny(self.folder / "tiny")
        self.takes = {name: self.run(self.command(name)) or 0.0 for name in NAMES}

    def once(self, name: str) -> bool:
        """Run a round. Returns whether the command was killed before its end."""
        before = self.look()
        after = dict(before["texts"])
        self.rounds += 1
        if name in ("ingest", "encode"):
            after = self.write(self.rounds)
        if name == "encode":  # give the command work
            self.run([*self.command("ingest"), "--no-encode"])
            before["texts"] = after
        command = self.command(name)
        moment = self.random.uniform(0.0, 1.05 * self.takes[name])
        with self.reader():
            killed = self.run(command, moment) is None
        now = self.look()
        self.compare()
        if now["texts"] not in (before["texts"], after):
            raise Lost(f"{name}: the documents are neither the old ones nor the new ones")
        if not now["rankers"].keys() >= before["rankers"].keys():
            raise Lost(f"{name}: rankers {before['rankers']} became {now['rankers']}")
        changed = {n for n, version in before["rankers"].items() if now["rankers"][n] != version}
        if not changed <= {TRAINED.get(name)}:
            raise Lost(f"{name}: {changed} changed")
        if not now["stacks"].keys() >= before["stacks"].keys():
            raise Lost(f"{name}: stacks are missing")
        if name != "switch" and before["used"] not in (None, now["used"]):
            raise Lost(f"{name}: another stack is in use")
        if self.rounds % RETRY == 0:
            self.run(command)
        return killed


def act(command: list[str], said: str) -> None:
    """Run one command in a process that has imported all modules."""
    os.setsid()
    number = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(number, 1)
    os.dup2(number, 2)
    if command[0] == "install":
        workspace = Workspace.open(command[1])
        for _ in range(40):
            workspace.install(workspace.ranker("text"))
    elif command[0] == "switch":
        workspace = Workspace.open(command[1])
        for _ in range(20):
            workspace.use_stack("bm25,text")
            workspace.use_stack("bm25")
            workspace.rollback()
    else:
        from rerank.cli import main

        sys.argv = ["rerank", *command]
        main()


def search_until(stop: Any, folder: str) -> None:
    """Search with both first stages until the event is set."""
    workspace = Workspace.open(folder)
    while not stop.is_set():
        for stage in ("bm25", "tfidf"):
            candidates = workspace.engine.find(SearchRequest("cell", first_stage=stage, depth=SIZE))
            if not candidates.ids or None in workspace.engine.get(candidates.ids[:3]):
                raise Lost(f"{stage} finds no document, or a missing one")
        stop.wait(0.01)


def tiny(folder: Path) -> None:
    """Write a randomly initialized BERT with one layer, which trains quickly."""
    import transformers

    folder.mkdir(exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *ascii_lowercase]
    words += [f"##{letter}" for letter in ascii_lowercase]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=64, **shape)
    transformers.BertModel(config).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rounds = Rounds(Path(scratch), args.seed)
        rounds.prepare()
        kills: Counter[str] = Counter()
        lost: list[str] = []
        begin, tried = time.monotonic(), 0
        while sum(kills.values()) < args.kills and not lost:
            name = NAMES[tried % len(NAMES)]
            tried += 1
            try:
                kills[name] += rounds.once(name)
            except (Lost, RerankError, OSError, KeyError, ValueError) as error:
                lost.append(f"round {tried}, {name}: {error}")
            print(f"\r{sum(kills.values())} kills of {tried} commands", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        seconds = round(time.monotonic() - begin)
        print(json.dumps({"kills": kills, "commands": tried, "lost": lost, "seconds": seconds}, indent=2))
        sys.exit(bool(lost))


if __name__ == "__main__":
    main()
