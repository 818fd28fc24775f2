"""Models in ONNX Runtime: files of ONNX, and BERT for queries; needs the extra ``onnx``."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import NotInstalledError, UsageError
from rerank.common.files import parse_json
from rerank.rankers.encoder.bert import Array, Bert
from rerank.rankers.encoder.folder import onnx_file
from rerank.rankers.encoder.modules import Modules, Tokens
from rerank.rankers.encoder.published import Pooling
from rerank.rankers.encoder.transformer import TextEncoder, by_tokens

if TYPE_CHECKING:
    from onnx import NodeProto
    from onnxruntime import InferenceSession, SessionOptions

TYPES = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}
"""Types of the inputs of a model."""
CONTRIBUTED = "com.microsoft"
"""Operators of ONNX Runtime."""


def _session(model: str | bytes, options: SessionOptions | None = None) -> InferenceSession:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise NotInstalledError.of(error, "a model of ONNX") or error from error
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True)
class OnnxModel:
    """A transformer in a file of ONNX. Its first output is read."""

    path: Path

    @cached_property
    def session(self) -> InferenceSession:
        """The session of ONNX Runtime, which is loaded once."""
        return _session(str(self.path))

    @cached_property
    def width(self) -> int:
        """The numbers in the output for one token. The model runs once to find it."""
        token = np.zeros((1, 1), np.int64)
        return int(self.run(token, np.ones_like(token), token).shape[-1])

    def run(self, ids: NDArray[np.int64], mask: NDArray[np.int64], types: NDArray[np.int64]) -> Array:
        """Return the first output, (n, T, E) states or (n, classes), of (n, T) inputs."""
        values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        inputs = {}
        for node in self.session.get_inputs():
            inputs[node.name] = values[node.name].astype(TYPES[node.type])
        output: Array = self.session.run(None, inputs)[0]
        return output.astype(np.float32, copy=False)


@dataclass
class OnnxEncoder(TextEncoder):
    """An encoder in a file of ONNX, which does not learn.

    model:     an :class:`OnnxModel`.
    tokenizer: a tokenizer of the library ``tokenizers``.
    """

    @classmethod
    def read(cls, name: str, folder: Path, pooling: Pooling | None, longest: int | None) -> OnnxEncoder:
        """Read a folder. pooling, longest: see :meth:`TextEncoder.load`.

        Raises UsageError for a model with other inputs or outputs.
        """
        path = onnx_file(folder)
        assert path is not None
        config = parse_json((folder / "config.json").read_text("utf-8"))
        modules = Modules.read(folder)
        readable = int(config.get("max_position_embeddings") or 512)
        if longest is not None and longest > readable:
            raise UsageError(f"{name} reads at most {readable} tokens, not {longest}; lower --passage-tokens")
        longest = longest or min(modules.longest or 128, readable)
        tokens = Tokens.read(folder, longest, lowercase=modules.lowercase)
        # The tokenizer writes lower case now, also when it is stored.
        modules = replace(modules, pooling=pooling or modules.pooling, longest=longest, lowercase=False)
        encoder = cls(OnnxModel(path), tokens.tokenizer, modules)
        try:
            states = encoder.states([[*tokens.frame[0], *tokens.frame[1]]])
        except Exception as error:  # ONNX Runtime raises many kinds of errors
            reason = " ".join(str(error).split())[:200]
            raise UsageError(f"{path}: cannot be run ({reason}); give another model") from error
        if states.ndim != 3:
            raise UsageError(f"{path}: its first output must be a vector for each token; give another model")
        return encoder

    @property
    def width(self) -> int:
        """E, numbers per vector."""
        return self.modules.width(int(self.model.width))

    @cached_property
    def tokens(self) -> Tokens:
        """The tokenizer of documents, which starts each text with their prompt."""
        assert self.modules.longest is not None
        return Tokens(self.tokenizer, self.modules.longest, self.modules.document_prompt)

    @property
    def separator(self) -> list[int]:
        """The last special token after a text, which also separates titles from texts."""
        return self.tokens.frame[1][-1:]

    def states(self, sequences: Sequence[Sequence[int]]) -> Array:
        """Return the states of n sequences, (n, T, E), padded to the longest.

        sequences: tokens, with their special tokens.
        """
        ids = np.zeros((len(sequences), max(map(len, sequences))), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = sequence
            mask[row, : len(sequence)] = 1
        states: Array = self.model.run(ids, mask, np.zeros_like(ids))
        return states

    def encode(
        self,
        sequences: Sequence[Sequence[int] | NDArray[np.integer]],
        forward: Callable[[list[Any]], Any] | None = None,
    ) -> NDArray[np.float32]:
        """Return the vectors of n sequences without special tokens, (n, E), of length 1.

        forward: is not used; the file has all layers.
        """
        vectors = np.zeros((len(sequences), self.width), dtype=np.float32)
        before, after = self.tokens.frame
        for rows in by_tokens([len(sequence) for sequence in sequences]):
            framed = [[*before, *sequences[row], *after] for row in rows]
            states = self.states(framed)
            for row, sequence, states_of_sequence in zip(rows, framed, states):
                pooled = self._pool(states_of_sequence[: len(sequence)])
                vectors[row] = self.modules.mapped(pooled)
        return vectors

    def _pool(self, states: Array) -> Array:
        """Return the vector of a sequence, (E,): the mean of its (T, E) states, or its first state."""
        pooled: Array = states.mean(axis=0) if self.modules.pooling == "mean" else states[0]
        return pooled

    def version(self) -> str:
        """Return a hash of the file of the model and of its modules, which decide the vectors."""
        path: Path = self.model.path
        modules = asdict(self.modules)
        projection = modules.pop("projection")
        digest = hashlib.sha256(json.dumps(modules, sort_keys=True).encode())
        digest.update(np.memmap(path, np.uint8, "r").data)
        if projection is not None:
            digest.update(projection.tobytes())
        return digest.hexdigest()[:16]

    def save(self, folder: Path) -> None:
        """Copy the file of the model, and write its modules and its tokenizer."""
        path: Path = self.model.path
        source = path.parent.parent if path.parent.name == "onnx" else path.parent
        (folder / "onnx").mkdir(parents=True, exist_ok=True)
        for file in path.parent.glob(f"{path.name}*"):  # also weights beside the model
            shutil.copyfile(file, folder / "onnx" / file.name)
        shutil.copyfile(source / "config.json", folder / "config.json")
        self.tokenizer.save(str(folder / "tokenizer.json"))
        self.modules.write(folder, self.model.width)


@dataclass(frozen=True)
class OnnxBert(Bert):
    """BERT in ONNX Runtime. The matrices that it multiplies are a copy of the weights."""

    session: InferenceSession = field(default=None, repr=False)

    @classmethod
    def of(cls, bert: Bert) -> OnnxBert:
        """Return the same model with its operations in ONNX Runtime."""
        values = {item.name: getattr(bert, item.name) for item in fields(Bert)}
        return cls(**values, session=_Graph(bert).session())

    def states(self, ids: Sequence[int], types: Sequence[int] = (0,)) -> Array:
        """Return the states of the last layer, (T, E).

        ids: T tokens. types: of the T tokens, or one for all.
        """
        tokens = np.array([ids], dtype=np.int64)
        inputs = {
            "ids": tokens,
            "places": np.arange(self.first, self.first + len(ids), dtype=np.int64)[None],
            "types": np.broadcast_to(np.array(types, dtype=np.int64), tokens.shape),
            "lengths": np.array([len(ids)], dtype=np.int32),
        }
        states: Array = self.session.run(None, inputs)[0][0]
        return states


def fastest(bert: Bert) -> Bert:
    """Return the model in ONNX Runtime if the extra ``onnx`` is installed; a query takes half of the time."""
    missing = any(find_spec(package) is None for package in ("onnx", "onnxruntime"))
    return bert if missing else OnnxBert.of(bert)


class _Graph:
    """The operations of BERT, for ONNX Runtime."""

    def __init__(self, bert: Bert) -> None:
        self.bert = bert
        self.weights: dict[str, Array] = {}
        self.nodes: list[NodeProto] = []

    def session(self) -> InferenceSession:
        """Return a session of the operations. The weights are passed as arrays."""
        import onnx
        import onnxruntime
        from onnx import TensorProto, helper

        output = self._operations()
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "t"])
            for name in ("ids", "places", "types")
        ]
        inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, ["n"]))
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", "t", "e"])]
        declared = [self._declared(name, array) for name, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, "bert", inputs, outputs, initializer=declared)
        versions = [helper.make_opsetid("", 17), helper.make_opsetid(CONTRIBUTED, 1)]
        model = helper.make_model(graph, opset_imports=versions)
        model.ir_version = onnx.IR_VERSION_2023_5_5  # of operators 17; old enough for every ONNX Runtime
        options = onnxruntime.SessionOptions()
        arrays = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in self.weights.values()]
        options.add_external_initializers(list(self.weights), arrays)
        return _session(model.SerializeToString(), options)

    def _declared(self, name: str, array: Array) -> Any:
        """Return a weight without its numbers."""
        from onnx import TensorProto

        tensor = TensorProto(
            name=name, dims=array.shape, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL
        )
        for key, value in (("location", "memory"), ("offset", "0"), ("length", str(array.nbytes))):
            tensor.external_data.add(key=key, value=value)
        return tensor

    def _weight(self, name: str, array: Array) -> str:
        self.weights[name] = np.ascontiguousarray(array, dtype=np.float32)
        return name

    def _add(self, operator: str, inputs: Sequence[str], domain: str = "", **attributes: object) -> str:
        from onnx import helper

        output = f"{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(operator, inputs, [output], None, None, domain, None, **attributes)
        )
        return output

    def _operations(self) -> str:
        """Add the operations; return the name of the last states."""
        weights = self.bert.weights
        embeddings: list[str] = []
        for kind, input in (("word", "ids"), ("position", "places"), ("token_type", "types")):
            table = self._weight(f"{kind}s", weights[f"embeddings.{kind}_embeddings.weight"])
            embeddings.append(self._add("Gather", [table, input]))
        states = self._normalized(embeddings[0], self._add("Add", embeddings[1:]), "embeddings.LayerNorm")
        for number in range(self.bert.layers):
            layer = f"encoder.layer.{number}"
            attended = self._matmul(self._attention(states, layer), f"{layer}.attention.output.dense")
            states = self._normalized(
                attended, states, f"{layer}.attention.output.LayerNorm", f"{layer}.attention.output.dense"
            )
            hidden = self._matmul(states, f"{layer}.intermediate.dense")
            bias = f"{layer}.intermediate.dense.bias"
            hidden = self._add("BiasGelu", [hidden, self._weight(bias, weights[bias])], CONTRIBUTED)
            hidden = self._matmul(hidden, f"{layer}.output.dense")
            states = self._normalized(hidden, states, f"{layer}.output.LayerNorm", f"{layer}.output.dense")
        return states

    def _matmul(self, states: str, name: str) -> str:
        matrix = self._weight(f"{name}.matrix", self.bert.weights[f"{name}.weight"].T)
        return self._add("MatMul", [states, matrix])

    def _normalized(self, states: str, residual: str, name: str, linear: str | None = None) -> str:
        """Add both and the bias of a linear layer, and normalize."""
        names = [f"{name}.weight", f"{name}.bias", *([f"{linear}.bias"] if linear else [])]
        inputs = [self._weight(name, self.bert.weights[name]) for name in names]
        return self._add(
            "SkipLayerNormalization", [states, residual, *inputs], CONTRIBUTED, epsilon=self.bert.epsilon
        )

    def _attention(self, states: str, layer: str) -> str:
        names = [f"{layer}.attention.self.{name}" for name in ("query", "key", "value")]
        matrices = [self.bert.weights[f"{name}.weight"].T for name in names]
        biases = [self.bert.weights[f"{name}.bias"] for name in names]
        matrix = self._weight(f"{layer}.matrix", np.concatenate(matrices, axis=1))
        bias = self._weight(f"{layer}.bias", np.concatenate(biases))
        return self._add(
            "Attention", [states, matrix, bias, "lengths"], CONTRIBUTED, num_heads=self.bert.heads
        )
