"""A small random cross-encoder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

WORDS = [f"w{i}" for i in range(40)]
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 300,
    "initializer_range": 0.5,
}


def bert(folder: Path, labels: int = 1, words: Iterable[str] = WORDS) -> Path:
    """Save a BERT that scores pairs of texts of these words."""
    import transformers

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", *words]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(names) + "\n", "utf-8")
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(**SIZES, vocab_size=len(names) + 1, num_labels=labels)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder
