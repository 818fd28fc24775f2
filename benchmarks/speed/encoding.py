"""Compare the documents per second of an encoder: here, in sentence-transformers, and in ONNX Runtime alone.

    python benchmarks/speed/encoding.py DATA/cf MODELS/bge-small-en-v1.5 [--documents 64] [--rounds 3]

MODELS has ``onnx/model.onnx`` (``tools/encoder_package.py --onnx``). The ways take turns on the same
documents, so that other work on the machine slows all of them. Processor time is counted, with one thread.
ONNX Runtime alone reads batches of 32 texts in the order of the file.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.common.collection import Collection
from benchmarks.common.timing import seconds_of
from rerank.rankers.encoder.onnx import OnnxModel
from rerank.rankers.encoder.transformer import TextEncoder

TOKENS, BATCH = 256, 32


def padded(encoder: TextEncoder, model: OnnxModel, texts: list[str]) -> None:
    """Encode batches in the given order."""
    before, after = encoder.tokens.frame
    for begin in range(0, len(texts), BATCH):
        tokens = encoder.tokens(texts[begin : begin + BATCH])
        framed = [[*before, *text[: encoder.room], *after] for text in tokens]
        ids = np.zeros((len(framed), max(map(len, framed))), dtype=np.int64)
        for row, text in enumerate(framed):
            ids[row, : len(text)] = text
        model.run(ids, (ids > 0).astype(np.int64), np.zeros_like(ids))


def main() -> None:
    import onnxruntime
    import sentence_transformers
    import torch

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("collection", type=Path)
    options.add_argument("model", type=Path)
    options.add_argument("--documents", type=int, default=64)
    options.add_argument("--rounds", type=int, default=3)
    args = options.parse_args()
    torch.set_num_threads(1)
    texts = [document.content for document in Collection(args.collection).documents(args.documents)]
    encoder = TextEncoder.load(str(args.model), longest=TOKENS)
    theirs = sentence_transformers.SentenceTransformer(str(args.model), device="cpu")
    theirs.max_seq_length = TOKENS
    model, session = OnnxModel(args.model / "onnx" / "model.onnx"), onnxruntime.SessionOptions()
    session.intra_op_num_threads = 1
    vars(model)["session"] = onnxruntime.InferenceSession(str(model.path), session)
    ways = {
        "here": lambda: encoder.encode([text[: encoder.room] for text in encoder.tokens(texts)]),
        "sentence-transformers": lambda: theirs.encode(texts, show_progress_bar=False),
        "ONNX Runtime": lambda: padded(encoder, model, texts),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(args.rounds):
        for way, encode in ways.items():
            seconds[way].append(seconds_of(encode, time.process_time))
    for way, times in seconds.items():
        ratio = median(times) / median(seconds["here"])
        print(f"{way}: {len(texts) / median(times):.1f} documents per second, {ratio:.2f} times the time")


if __name__ == "__main__":
    main()
