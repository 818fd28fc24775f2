"""Compare /v1/rerank with a cross-encoder of MiniLM-L6's size, on one core each.

    python benchmarks/speed/service.py WORKSPACE

WORKSPACE has trained rankers, for example the workspace of `rerank demo`. The documents are texts of the
workspace cut to 200 words. The request contains them, so the service has no stored features of them. The
cross-encoder has random weights and runs in this process, without a tokenizer. Its input has 276 tokens for
a query and 200 words.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.common.service import connection_to, equal_weights, post, service_process
from benchmarks.common.timing import p50
from rerank.common.batches import batched
from rerank.workspace.workspace import Workspace

QUERY = "how do bacteria become resistant to antibiotics"
WORDS = 200
TOKENS = 276  # 1.3 per word, and the separators of query and document


def texts(workspace: Workspace, count: int) -> list[str]:
    """Return texts of exactly 200 words."""
    words = (word for document in workspace.engine.documents() for word in document.content.split())
    return [" ".join(text) for text in islice(batched(words, WORDS), count)]


def cross_encoder(count: int) -> float:
    """Return the milliseconds for one query and ``count`` documents."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.set_num_threads(1)
    layers = {
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "hidden_size": 384,
        "intermediate_size": 1536,
    }
    config = BertConfig(vocab_size=30522, num_labels=1, **layers)
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
    options = parser.parse_args()
    workspace = Workspace.open(options.workspace)
    complete = options.stack or equal_weights(["tfidf", *workspace.trained()])
    documents = texts(workspace, options.documents)
    with service_process(workspace.folder, Path(os.devnull)) as (url, _):
        connection = connection_to(url)

        def ask(body: bytes) -> None:
            status, data = post(connection, "/v1/rerank", body)
            assert status == 200, data

        spent = {}
        for stack in ("tfidf", "tfidf*0.5 + text*0.5", complete):
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
