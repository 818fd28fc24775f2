"""Transformer text encoder; torch loads on use."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import NotInstalledError, UsageError
from rerank.rankers.encoder.bert import first_position
from rerank.rankers.encoder.folder import check_encoder, runs_in_onnx
from rerank.rankers.encoder.modules import Modules, Tokens, lowercase_texts
from rerank.rankers.encoder.published import Pooling

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

TOKENS = 4096
"""Tokens that are encoded at once, padding included."""
VOLATILE = frozenset(
    {
        *("transformers_version", "architectures", "dtype", "torch_dtype", "use_cache", "return_dict"),
        *("id2label", "label2id", "problem_type", "chunk_size_feed_forward", "initializer_range"),
    }
)
"""Keys of a configuration that do not decide a vector, but change when a model is saved or moved, or with the
version of transformers."""
_LOCAL = {"local_files_only": True, "trust_remote_code": False}
"""Settings of transformers: nothing is downloaded, and no code of a model is run."""
MANY = 256
"""Least number of sequences for which a model is moved to a GPU."""


@dataclass
class TextEncoder:
    """A pretrained encoder of texts: a transformer, its tokenizer, and what makes vectors of its output.

    model:     from ``transformers.AutoModel``.
    tokenizer: from ``transformers.AutoTokenizer``.
    modules:   pooling, length of a sequence, linear map and prompts.
    precision: ``auto``, ``fp32`` or ``bf16``; see :func:`precision`.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    modules: Modules
    precision: str = "auto"

    @classmethod
    def load(
        cls,
        name: str,
        *,
        pooling: Pooling | None = None,
        longest: int | None = None,
        layers: int | None = None,
    ) -> TextEncoder:
        """Load an encoder on this machine, from weights in safetensors. No code of the model is run.

        name:    a folder or the name of a model, as for
            :func:`rerank.rankers.encoder.folder.model_folder`.
        pooling: Default: of the model's folder, else the mean of the token vectors.
        longest: tokens per sequence. Default: of the model's folder, else 128 or as many as the model reads.
        layers:  number of first layers to keep. Default: all.

        Raises UsageError for a model that cannot be used, NotInstalledError without torch.
        """
        folder = check_encoder(name)
        if runs_in_onnx(folder):
            from rerank.rankers.encoder.onnx import OnnxEncoder

            if layers is not None:
                raise UsageError(f"{name} is a file of ONNX, which has all layers; leave out --layers")
            return OnnxEncoder.read(name, folder, pooling, longest)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        torch, transformers = _libraries()
        try:
            modules = Modules.read(folder)
            config = transformers.AutoConfig.from_pretrained(folder, **_LOCAL)
            longest = _check_config(name, config, layers, longest, modules.longest or 128)
            modules = replace(modules, pooling=pooling or modules.pooling, longest=longest)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **_LOCAL)
            torch.manual_seed(0)  # of weights that are missing and unused
            model = _load_weights(name, folder, config)
        except UsageError:
            raise
        except Exception as error:  # transformers raises many kinds of errors
            reason = " ".join(str(error).split())[:200]
            raise UsageError(f"{name}: not a model that transformers can load ({reason})") from error
        if not tokenizer.is_fast:
            raise UsageError(f"{name}: its tokenizer is not fast; give a model with tokenizer.json")
        if modules.lowercase:
            lowercase_texts(tokenizer.backend_tokenizer)
            modules = replace(modules, lowercase=False)  # the tokenizer does it now, also when it is stored
        encoder = cls(model.float().eval(), tokenizer, modules)
        if min(encoder.room, encoder.of_queries.room) < 1:
            raise UsageError(f"{name}: a prompt has {longest} tokens or more; raise --passage-tokens")
        return encoder

    @property
    def width(self) -> int:
        """E, the numbers of a vector after pooling and projection."""
        return self.modules.width(int(self.model.config.hidden_size))

    @property
    def device(self) -> torch.device:
        """The device that the model runs on: a CPU, or a GPU during a training."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @cached_property
    def tokens(self) -> Tokens:
        """The tokenizer of documents: a copy of ``tokenizer`` that neither pads nor cuts."""
        backend = self.tokenizer.backend_tokenizer
        modules = self.modules
        assert modules.longest is not None
        return Tokens(type(backend).from_str(backend.to_str()), modules.longest, modules.document_prompt)

    @property
    def of_queries(self) -> TextEncoder:
        """The same model with the prompt of queries instead of the prompt of documents."""
        queries = replace(self)
        queries.tokens = replace(self.tokens, prompt=self.modules.query_prompt)
        return queries

    def without_projection(self) -> TextEncoder:
        """Return the same model without the linear map of its vectors, and with the same prompt."""
        if self.modules.projection is None:
            return self
        unmapped = replace(self, modules=replace(self.modules, projection=None))
        unmapped.tokens = self.tokens
        return unmapped

    @property
    def room(self) -> int:
        """The number of tokens of a text that fit into a sequence with its special tokens and prompt."""
        return self.tokens.room

    @property
    def separator(self) -> list[int]:
        """The token between titles and texts: the separator of the tokenizer, or its last special token."""
        number = self.tokenizer.sep_token_id
        return self.tokens.frame[1][-1:] if number is None else [int(number)]

    def batch(self, sequences: Sequence[Sequence[int] | NDArray[np.integer]]) -> tuple[Tensor, Tensor]:
        """Return tokens and mask of n sequences for the model, (n, T) each, padded to the longest.

        sequences: tokens without special tokens and prompt, which are added.
        """
        import torch

        before, after = self.tokens.frame
        lengths = np.array([len(before) + len(sequence) + len(after) for sequence in sequences])
        ids = np.full((len(sequences), lengths.max()), self.tokenizer.pad_token_id or 0, dtype=np.int64)
        for row, sequence in enumerate(sequences):
            ids[row, : lengths[row]] = np.concatenate((before, sequence, after))
        mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        return torch.from_numpy(ids).to(self.device), torch.from_numpy(mask).to(self.device)

    def trainable(self) -> list[Any]:
        """Return the parameters that learn: all except the parameters of frozen layers."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors of n sequences, (n, E), with gradient and of any length.

        ids, mask: (n, T), from :meth:`batch`.
        """
        states: Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return self.pooled(states, mask)

    def pooled(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors of n sequences, (n, E): the pooled and projected states of their tokens.

        states: (n, T, E). mask: (n, T), 1 for tokens and 0 for padding.
        """
        import torch

        if self.modules.pooling == "cls":
            vectors = states[:, 0].float()
        else:
            weights = mask[:, :, None].to(states.dtype)
            vectors = ((states * weights).sum(dim=1) / weights.sum(dim=1)).float()
        if self.modules.projection is None:
            return vectors
        with torch.autocast(vectors.device.type, enabled=False):
            return vectors @ torch.tensor(self.modules.projection, device=vectors.device)

    def encode(
        self,
        sequences: Sequence[Sequence[int] | NDArray[np.integer]],
        forward: Callable[[list[Any]], Tensor] | None = None,
    ) -> NDArray[np.float32]:
        """Return the vectors of n sequences, (n, E), without gradient and of length 1.

        From :data:`MANY` sequences on, a GPU is used if there is one.

        forward: sequences -> their vectors, instead of the model.
        """
        import torch

        vectors = np.zeros((len(sequences), self.width), dtype=np.float32)
        device = self.device
        forward = forward or (lambda batch: self.forward(*self.batch(batch)))
        if len(sequences) >= MANY and torch.cuda.is_available():
            self.model.to("cuda")
        self.model.eval()
        try:
            for rows in by_tokens([len(sequence) for sequence in sequences]):
                with torch.inference_mode(), precision(self.device, self.precision):
                    states = forward([sequences[row] for row in rows])
                    vectors[rows] = torch.nn.functional.normalize(states, dim=1).float().cpu().numpy()
        finally:
            self.model.to(device)
        return vectors

    def version(self) -> str:
        """Return a hash of the weights, the configuration and the modules, which decide the vectors."""
        config = _decisive_values(self.model.config.to_dict())
        text = json.dumps(config, sort_keys=True, default=str)
        modules = self.modules
        digest = hashlib.sha256(f"{modules.pooling} {modules.longest} {text}".encode())
        digest.update(f"{modules.query_prompt}{modules.document_prompt}".encode())
        if modules.projection is not None:
            digest.update(modules.projection.tobytes())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def save(self, folder: Path) -> None:
        """Write the model, its tokenizer and its modules in the layout of sentence-transformers."""
        self.model.save_pretrained(folder, safe_serialization=True)
        self.tokenizer.save_pretrained(folder)
        self.modules.write(folder, int(self.model.config.hidden_size))


def _decisive_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration that can change vectors, without those that are off."""
    decisive: dict[str, Any] = {}
    for name, value in config.items():
        is_volatile = name in VOLATILE or name.startswith("_")
        if not is_volatile and value not in (None, False):
            decisive[name] = value
    return decisive


def by_tokens(lengths: Sequence[int], max_tokens: int = TOKENS) -> Iterator[list[int]]:
    """Yield groups of the positions of sequences, longest first, of at most ``max_tokens`` tokens.

    >>> list(by_tokens([5, 4000, 7]))
    [[1], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda position: -lengths[position])
    start = 0
    while start < len(order):
        longest = lengths[order[start]] + 2
        size = max(1, max_tokens // longest)
        yield order[start : start + size]
        start += size


def precision(device: torch.device, requested: str = "auto") -> torch.autocast:
    """Return the context in which a model computes with this precision.

    requested: ``fp32``, ``bf16``, or ``auto``: bf16 on GPUs, and on CPUs that multiply it.
    """
    import torch

    if requested == "auto":
        multiplies_on_cpu = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
        is_fast = multiplies_on_cpu() if device.type == "cpu" else device.type == "cuda"
        requested = "bf16" if is_fast else "fp32"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=requested == "bf16")


def _check_config(
    name: str, config: PretrainedConfig, layers: int | None, longest: int | None, usual: int
) -> int:
    """Set the number of layers; return the tokens of a passage. Raises UsageError for unsupported models."""
    if layers is not None:
        if not 1 <= layers <= int(config.num_hidden_layers):
            raise UsageError(f"{name} has {config.num_hidden_layers} layers; {layers} cannot be kept")
        config.num_hidden_layers = layers
    positions = int(getattr(config, "max_position_embeddings", 0) or 2**31)
    readable = positions - first_position(config.to_dict())
    if longest is not None and longest > readable:
        raise UsageError(f"{name} reads at most {readable} tokens, not {longest}; lower --passage-tokens")
    return longest or min(usual, readable)


def _load_weights(name: str, folder: Path, config: PretrainedConfig) -> PreTrainedModel:
    """Load a model. Raises UsageError if weights are missing, which would otherwise be random."""
    from transformers import AutoModel

    model, info = AutoModel.from_pretrained(
        folder, config=config, use_safetensors=True, output_loading_info=True, **_LOCAL
    )
    missing = sorted(key for key in info["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise UsageError(
            f"{name}: its weights lack {len(missing)} tensors of the model ({missing[0]}, ...); give the"
            " weights of this model"
        )
    return model


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise NotInstalledError.of(error, "a transformer") or error from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return torch, transformers
