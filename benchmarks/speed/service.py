"""Compare /v1/rerank with a cross-encoder of MiniLM-L6's size, on one core each.

    python benchmarks/speed/service.py WORKSPACE

WORKSPACE has trained rankers, for example the workspace of `rerank demo`. The documents are texts of the
workspace cut to 200 words. The request contains them, so the service has no stored features of them. The
cross-encoder has random weights and runs in this process, without a tokenizer. Its input has 276 tokens for
a query and 200 words.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.common.service import equal_weights, service_process
from benchmarks.common.timing import p50
from rerank.workspace.workspace import Workspace

QUERY = "how do bacteria become resistant to antibiotics"
WORDS = 200
TOKENS = 276  # 1.3 per word, and the separators of query and document


def texts(workspace: Workspace, count: int) -> list[str]:
    """Texts of exactly 200 words."""
    found: list[str] = []
    words: list[str] = []
    for document in workspace.engine.documents():
        words += document.content.split()
        while len(words) >= WORDS and len(found) < count:
            found.append(" ".join(words[:WORDS]))
            words = words[WORDS:]
        if len(found) == count:
            break
    return found


def cross_encoder(count: int) -> float:
    """Milliseconds for one query and ``count`` documents."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=30522,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        num_labels=1,
    )
    model = BertForSequenceClassification(config).eval()
    tokens = torch.randint(1000, 30000, (count, TOKENS))

    def score() -> None:
        with torch.inference_mode():
            for i in range(0, count, 32):
                model(input_ids=tokens[i : i + 32])

    return p50(score, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workspace")
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--stack", help="Stack. Default: tfidf and all rankers, equal weights.")
    given = parser.parse_args()
    workspace = Workspace.open(given.workspace)
    names = ["tfidf", *workspace.trained()]
    whole = given.stack or equal_weights(names)
    documents = texts(workspace, given.documents)
    with service_process(workspace.folder, Path(os.devnull)) as (url, _):
        connection = http.client.HTTPConnection(url.removeprefix("http://"))

        def ask(body: bytes) -> None:
            connection.request("POST", "/v1/rerank", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            data = answer.read()
            assert answer.status == 200, data

        spent = {}
        for stack in ("tfidf", "tfidf*0.5 + text*0.5", whole):
            body = json.dumps({"query": QUERY, "documents": documents, "stack": stack}).encode()
            ask(body)
            spent[stack] = p50(lambda: ask(body), 30)  # noqa: B023
            print(f"/v1/rerank, {len(documents)} documents of {WORDS} words, {stack}: {spent[stack]:.1f} ms")
    slow = cross_encoder(len(documents))
    print(f"cross-encoder of MiniLM-L6's size: {slow:.0f} ms")
    for stack, fast in spent.items():
        print(f"    {slow / fast:.0f} times {stack}")


if __name__ == "__main__":
    main()
