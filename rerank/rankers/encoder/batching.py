"""Encodes batches with gradient; keeps the outputs of layers that do not train."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rerank.errors import UsageError
from rerank.rankers.encoder.transformer import TextEncoder, by_tokens, precision

MEMORY_SHARE = 0.125
"""Share of the memory that the outputs of frozen layers may take."""
MAX_TOKENS = 1 << 15
"""Tokens of a batch that are encoded with gradient at once."""
TOLERANCE = 1e-4
"""Largest difference between the model and its two halves, one after the other."""
Encode = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""(n,) positions of documents -> (n, E) vectors of length 1, without dropout."""


class Loss(nn.Module):
    """Loss of a batch; checkpoints store parameters and buffers.

    reads: attributes of a batch whose texts are encoded.
    rate_factor: learning rate relative to encoder.
    """

    reads: tuple[str, ...] = ("anchor",)
    rate_factor: float = 1.0

    def forward(self, batch: Any) -> Tensor:
        """Return the loss, a scalar, of :func:`with_vectors`."""
        raise NotImplementedError

    def on_epoch_start(self, encode: Encode) -> None:
        """Prepare an epoch; not called on resume within it."""

    def on_step_end(self) -> None:
        """Update after a step."""


def with_vectors(batch: Any, reads: Sequence[str], encoded: Tensor) -> Any:
    """Return the attributes of a batch: arrays as tensors, and vectors, (n, E), for the texts ``reads``.

    encoded: the vectors of all these texts.
    """
    values = {}
    for name, value in vars(batch).items():
        if isinstance(value, np.ndarray):
            values[name] = torch.from_numpy(value).to(encoded.device)
    vectors = dict(zip(reads, encoded.chunk(len(reads))))
    return SimpleNamespace(**values, **vectors, tokens=getattr(batch, reads[0]))


def by_length(lengths: NDArray[np.integer]) -> list[NDArray[np.integer]]:
    """Split texts by length if that saves a tenth of padded tokens.

    >>> [rows.tolist() for rows in by_length(np.array([10, 64, 9, 60]))], len(by_length(np.array([9, 10])))
    ([[1, 3], [0, 2]], 1)
    """
    count = len(lengths)
    order = np.argsort(-lengths, kind="stable")
    descending = lengths[order]
    cuts = np.arange(1, count)
    tokens = descending[0] * cuts + descending[1:] * (count - cuts)
    if count < 2 or tokens.min() > 0.9 * descending[0] * count:
        return [np.arange(count)]
    return np.split(order, [int(tokens.argmin()) + 1])


class BatchEncoder:
    """Encodes texts with gradient for the last ``train_layers``; 0: for all layers.

    BERT-like models run the other layers once per text (:meth:`fill`).

    outputs: tokens -> output of the frozen layers, two bytes per number.

    Raises UsageError for too few layers.
    """

    def __init__(self, encoder: TextEncoder, train_layers: int = 0) -> None:
        self.encoder = encoder
        self.outputs: dict[bytes, Tensor] = {}
        self._halves: tuple[Any, Any] | None = None
        if not train_layers:
            return
        layers = _layers(encoder.model)
        if layers is None or train_layers > len(layers):
            separate = "no separate layers" if layers is None else f"{len(layers)} layers"
            raise UsageError(f"the model has {separate}; the last {train_layers} cannot be trained")
        for parameter in encoder.model.parameters():
            parameter.requires_grad_(False)
        for parameter in layers[-train_layers:].parameters():
            parameter.requires_grad_(True)
        self._halves = _halves(encoder, layers, len(layers) - train_layers)

    @property
    def caches_outputs(self) -> bool:
        """Whether :meth:`fill` can be useful: on a CPU, with frozen layers that run separately."""
        return self._halves is not None and self.encoder.device.type == "cpu"

    def fill(
        self, texts: Iterable[NDArray[np.int32]], progress: Callable[[int], object] | None = None
    ) -> bool:
        """Cache outputs of distinct texts; False without enough memory.

        Fixed batches make training reproducible.
        """
        ordered = sorted(texts, key=lambda text: text.tobytes())
        tokens = sum(len(text) + self._special_tokens for text in ordered)
        if 2 * self.encoder.model.config.hidden_size * tokens > MEMORY_SHARE * _memory():
            return False
        for rows in by_tokens([len(text) for text in ordered]):
            batch = [ordered[row] for row in rows]
            for text, output in zip(batch, self._lower(batch)):
                self.outputs[text.tobytes()] = output.half()
            if progress is not None:
                progress(len(rows))
        return True

    def encode(self, texts: list[NDArray[np.int32]]) -> Tensor:
        """Return vectors with gradient, (n, E).

        More than MAX_TOKENS tokens are encoded in groups of similar length, and again for the gradient (Gao
        et al. 2021).
        """
        groups = list(by_tokens([len(text) for text in texts], MAX_TOKENS))
        if len(groups) == 1:
            return self._by_length(texts)
        on_device = next(self.encoder.model.parameters())  # so that its random numbers are repeated

        def encode(rows: list[int], _: Tensor) -> Tensor:
            return self._by_length([texts[row] for row in rows])

        encode_twice = partial(checkpoint, encode, use_reentrant=False)
        vectors = torch.cat([encode_twice(rows, on_device) for rows in groups])
        return vectors[np.argsort(np.concatenate(groups))]

    def _by_length(self, texts: list[NDArray[np.int32]]) -> Tensor:
        """Return vectors, (n, E); on a CPU, short and long texts are encoded separately if that is faster."""
        if (
            self.encoder.device.type != "cpu"
        ):  # a GPU takes one large batch in less time than two smaller ones
            return self._encode(texts)
        groups = by_length(np.array([len(text) for text in texts]) + self._special_tokens)
        if len(groups) == 1:
            return self._encode(texts)
        vectors = torch.cat([self._encode([texts[row] for row in rows]) for rows in groups])
        return vectors[np.argsort(np.concatenate(groups))]

    @property
    def _special_tokens(self) -> int:
        """The number of special tokens around each text."""
        return sum(map(len, self.encoder.tokens.frame))

    def unit_vectors(self, texts: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        """Return unit vectors, (n, E), without dropout."""
        return self.encoder.encode(texts, self._encode)

    def _encode(self, texts: list[NDArray[np.int32]]) -> Tensor:
        if self._halves is None:
            with precision(self.encoder.device, self.encoder.precision):
                return self.encoder.forward(*self.encoder.batch(texts))
        keys = [text.tobytes() for text in texts]
        missing = {key: text for key, text in zip(keys, texts) if key not in self.outputs}
        computed = dict(zip(missing, self._lower([*missing.values()]))) if missing else {}
        outputs = [(computed if key in computed else self.outputs)[key].float() for key in keys]
        padded = nn.utils.rnn.pad_sequence(outputs, batch_first=True)
        masks = [output.new_ones(len(output), dtype=torch.long) for output in outputs]
        mask = nn.utils.rnn.pad_sequence(masks, batch_first=True)
        upper = self._halves[1]
        upper.train(self.encoder.model.training)
        with precision(self.encoder.device, self.encoder.precision):
            out = upper(inputs_embeds=padded, attention_mask=mask).last_hidden_state
            return self.encoder.pooled(out, mask)

    def _lower(self, texts: list[NDArray[np.int32]]) -> list[Tensor]:
        """Return the outputs of the lower layers, (T, E) of each text."""
        assert self._halves is not None
        lower = self._halves[0].eval()
        with torch.no_grad(), precision(self.encoder.device, self.encoder.precision):
            ids, mask = self.encoder.batch(texts)
            states: Tensor = lower(input_ids=ids, attention_mask=mask).last_hidden_state
        return [state[:count] for state, count in zip(states, mask.sum(dim=1).tolist())]


class _Identity(nn.Module):
    """Replaces the upper half's embeddings."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> Tensor:
        return inputs_embeds


def _layers(model: Any) -> nn.ModuleList | None:
    """Return the layers of the model; None if it has no list of them."""
    count = model.config.num_hidden_layers
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return next((layers for layers in lists if len(layers) == count), None)


def _halves(encoder: TextEncoder, layers: nn.ModuleList, cut: int) -> tuple[Any, Any] | None:
    """Split at layer ``cut`` with shared weights; None if impossible."""
    model = encoder.model
    if not cut or getattr(getattr(model, "encoder", None), "layer", None) is not layers:
        return None
    lower = _with_layers(model, layers[:cut])
    upper = _with_layers(model, layers[cut:])
    upper.embeddings = _Identity()
    ids, mask = encoder.batch([range(5, 12)])
    model.eval(), lower.eval(), upper.eval()
    try:
        with torch.no_grad():
            whole = model(input_ids=ids, attention_mask=mask).last_hidden_state
            middle = lower(input_ids=ids, attention_mask=mask).last_hidden_state
            in_two_steps = upper(inputs_embeds=middle, attention_mask=mask).last_hidden_state
    except Exception:  # models differ in the arguments that they accept
        return None
    return (lower, upper) if torch.allclose(whole, in_two_steps, atol=TOLERANCE, rtol=0) else None


def _with_layers(model: Any, layers: Any) -> Any:
    """Return a model that shares the weights of ``model``, but has only these layers."""
    copied_model = copy.copy(model)
    copied_encoder = copy.copy(model.encoder)
    for module in (copied_model, copied_encoder):
        module._modules = dict(module._modules)
    copied_encoder.layer = layers
    copied_model.encoder = copied_encoder
    return copied_model


def _memory() -> int:
    """Return the bytes of memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
