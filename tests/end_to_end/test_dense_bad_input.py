"""``rerank train dense`` on bad input and small machines, and its interruptions."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from tests.support.dense import documents, options, stored_ranker, wait_for_step


@pytest.fixture
def made(run, write_lines, tmp_path):
    """Return a function that creates a workspace of documents."""

    def make(of=None, name="ws"):
        corpus = write_lines(tmp_path / f"{name}.jsonl", documents() if of is None else of)
        run("ingest", corpus, "-w", tmp_path / name).ok()
        return tmp_path / name

    return make


def train(run, folder, *options):
    """Train ``dense``, and return the JSON report as one dictionary."""
    report = run("train", "dense", *options, "--json", "-w", folder).json
    (one,) = report["rankers"]
    return {**one, **one["details"], "encoded": report["encoded"]}


def no_ranker_remains(folder):
    assert not list(Path(folder).glob("rankers/*dense*"))
    assert not list(Path(folder).glob("rankers/.*"))
    return True


def test_a_batch_can_contain_the_whole_collection(run, made, tiny):
    actual = train(run, made(), *options(tiny, "--batch", 500, "--epochs", 5))
    assert [m["step"] for m in actual["history"] if m["share"] == 1] == [0, 5]
    assert actual["encoded"] == {"dense": 48}


def test_a_very_long_document_has_a_limited_number_of_passages(run, made, tiny):
    """A document of 120,000 tokens has eight passages, or as many as requested."""
    long = documents()
    long[3]["text"] = "w1 " * 60_000 + "w2 " * 60_000
    folder = made(long, "long")
    for more, passages in (((), 8), (("--passages", 100), 100)):
        actual = train(run, folder, *options(tiny, "--steps", 3, *more))
        assert actual["version"].endswith(f"-{passages}-2")
        assert actual["encoded"] == {"dense": 48}


def test_invalid_models_are_refused(run, made, tiny, tmp_path):
    folder = made()
    (tmp_path / "file").write_text("no model")
    (tmp_path / "empty").mkdir()

    def changed(name, *, config=None, weights=None):
        target = Path(shutil.copytree(tiny, tmp_path / name))
        if config:
            record = json.loads((target / "config.json").read_text())
            (target / "config.json").write_text(json.dumps({**record, **config}))
        if weights:
            weights(target / "model.safetensors")
        return target

    def without_a_layer(file):
        arrays = {k: v for k, v in load_file(file).items() if "layer.1" not in k}
        save_file(arrays, file, metadata={"format": "pt"})

    for model, what in (
        (tmp_path / "file", "no model on this machine"),
        (tmp_path / "empty", "config.json is missing"),
        (changed("cut", weights=lambda f: f.write_bytes(f.read_bytes()[:5000])), "its size is wrong"),
        (changed("another", weights=without_a_layer), "its weights lack 16 tensors"),
        (changed("wider", config={"hidden_size": 64}), "not a model that transformers can load"),
    ):
        run("train", "dense", *options(model), "-w", folder).fails(2, str(model), what)
    assert no_ranker_remains(folder)


def test_a_decoder_is_accepted_and_an_encoder_decoder_is_refused(run, made, tmp_path):
    import tokenizers
    import transformers

    vocabulary = {"<unk>": 0, **{f"w{i}": i + 1 for i in range(40)}, "a": 41}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    for name, config in (
        ("gpt2", transformers.GPT2Config(vocab_size=42, n_embd=16, n_layer=1, n_head=2, n_positions=32)),
        ("t5", transformers.T5Config(vocab_size=42, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)),
    ):
        transformers.AutoModel.from_config(config).save_pretrained(tmp_path / name)
        fast.save_pretrained(tmp_path / name)
    folder = made()
    run("train", "dense", *options(tmp_path / "t5"), "-w", folder).fails(2, "an encoder with a decoder")
    assert no_ranker_remains(folder)
    assert train(run, folder, *options(tmp_path / "gpt2", "--steps", 4))["encoded"] == {"dense": 48}
    run("query", "w1 w2", "--stack", "dense", "--json", "-w", folder).ok()


def test_the_preset_of_the_paper_can_be_trained(run, made, tiny):
    folder = made()
    actual = train(run, folder, "--preset", "paper", "--model", tiny, "--passage-tokens", 16)
    assert [m["step"] for m in actual["history"]] == [0, 2]
    assert (actual["epoch"], actual["held_out"], "NDCG" in actual["history"][-1]) == (2, 0, False)
    settings = json.loads(next(folder.glob("rankers/dense-*/ranker.json")).read_text())["trained"]["settings"]
    assert (settings["objective"], settings["related"], settings["epochs"]) == ("quintuplet", 0, 1)
    hits = run("query", "w1 w2", "--stack", "dense", "--json", "-w", folder).json["hits"]
    assert hits


@pytest.fixture(scope="module")
def wide(tmp_path_factory, tiny):
    """A model with few weights whose batches need much memory."""
    import transformers

    folder = Path(shutil.copytree(tiny, tmp_path_factory.mktemp("wide") / "model"))
    record = json.loads((folder / "config.json").read_text())
    record.update(intermediate_size=8192)
    config = transformers.BertConfig(**record)
    transformers.BertModel(config).save_pretrained(folder)
    return str(folder)


PEAK = """
import sys
from rerank.cli import main
try: main()
except SystemExit: pass
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmPeak")]
print(peak, file=sys.stderr)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_an_out_of_memory_error_names_options_to_lower(forks, made, wide):
    folder = made()
    train = ("train", "dense", "--model", wide, "--passage-tokens", 60, "--steps", 2)
    train += ("--train-layers", "0", "-w", folder)
    large = [*train, "--batch", 48, "--precision", "fp32"]
    peaks = []
    for command in (large, [*train, "--batch", 2]):
        done = forks.start(*command, code=PEAK).result().ok()
        peaks.append(int(done.err.split()[-1]) * 1024)
    before = stored_ranker(folder)
    limits = {resource.RLIMIT_AS: sum(peaks) // 2}  # between both peaks, because the memory differs by run
    failed = forks.start(*large, limits=limits).result()
    assert (failed.code, failed.out) == (1, ""), failed
    last = failed.err.splitlines()[-1]
    assert last.startswith("rerank: a batch of 48 does not fit into memory; lower --batch or"), failed
    assert "--passage-tokens" in last
    assert "Traceback" not in failed.err
    assert stored_ranker(folder) == before


def test_a_full_disk_during_a_checkpoint_or_storing_the_ranker(run, forks, made, tiny):
    folder = made()
    train = ("train", "dense", *options(tiny, "--steps", 20, "--every", "5"), "-w", folder)
    run(*train)
    whole = stored_ranker(folder)
    fresh = made(name="fresh")
    train = (*train[:-1], fresh)
    weights = len(whole[1][0])
    for size in (0, 1_000, weights // 2, weights + 1_000):  # the last size is too small for Adam's moments
        done = forks.start(*train, limits={resource.RLIMIT_FSIZE: size}).result()
        assert done.code == 1, (size, done)
        assert done.err.splitlines()[-1].startswith("rerank: "), done
        assert "Traceback" not in done.err
        assert "unexpected" not in done.err, done
        assert no_ranker_remains(fresh)
    assert run(*train).code == 0
    assert stored_ranker(fresh)[:2] == whole[:2]


FORTY = ("--steps", 40, "--every", "10", "--patience", "100", "--precision", "fp32")


@pytest.fixture(scope="module")
def uninterrupted(run, write_lines, tiny, tmp_path_factory):
    """The files after 40 steps without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    assert run("ingest", write_lines(folder / "whole.jsonl", documents()), "-w", folder / "ws").code == 0
    assert run("train", "dense", *options(tiny, *FORTY), "-w", folder / "ws").code == 0
    return stored_ranker(folder / "ws")


@pytest.mark.parametrize(("how", "after"), [(signal.SIGINT, 0), (signal.SIGKILL, 10), (signal.SIGINT, 30)])
def test_an_interrupted_training_gives_the_same_ranker_when_repeated(
    run, forks, made, tiny, uninterrupted, how, after
):
    """Interruptions at the beginning, after the first checkpoint, and after the third."""
    settings = options(tiny, *FORTY)
    broken = made(name="broken")
    process = forks.start("train", "dense", *settings, "-w", broken)
    if after:
        wait_for_step(process, broken, after)
    while not after and process.poll() is None and "median distance" not in process.err:
        time.sleep(0.002)
    process.send_signal(how)
    code = process.wait(120)
    assert "Traceback" not in process.err
    if how == signal.SIGINT:
        assert code in (0, 130), process.err
    assert train(run, broken, *settings)["epochs"] == 40
    assert not list(broken.glob("training/*/*"))
    assert stored_ranker(broken) == uninterrupted
