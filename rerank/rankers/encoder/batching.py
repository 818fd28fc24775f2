"""Encodes batches with gradient; keeps the outputs of layers that do not train."""

from __future__ import annotations

import copy
import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rerank.common.errors import UsageError
from rerank.common.progress import ignore_count
from rerank.rankers.encoder.transformer import TextEncoder, by_tokens, precision

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MEMORY_SHARE = 0.125
"""Share of the memory that the outputs of frozen layers may take."""
MAX_TOKENS = 1 << 15
"""Tokens of a batch that are encoded with gradient at once, if the memory is large enough."""
GRADIENT_SHARE = 0.4
"""Share of the memory that the states of a batch may take on a CPU until their gradient is computed."""
GRADIENT_NUMBERS = 28
"""Numbers of four bytes that are kept for the gradient, for each layer and each number of a token's state.
Measured with bge-small: 12 layers, 384 numbers, 0.5 MB for a token."""
TOLERANCE = 1e-4
"""Largest difference between the model and its two halves, one after the other."""
Encode = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""(n,) positions of documents -> (n, E) vectors of length 1, without dropout."""


class Loss(nn.Module):
    """The loss of a batch of vectors. Checkpoints store its parameters and buffers.

    reads:       the attributes of a batch that are texts to encode.
    rate_factor: learning rate of its parameters, divided by the rate of the encoder.
    """

    reads: tuple[str, ...] = ("anchor",)
    rate_factor: float = 1.0

    def forward(self, batch: SimpleNamespace) -> Tensor:
        """Return the loss of a batch, a scalar with gradient.

        batch: tensors, and vectors instead of texts, as :func:`with_vectors` returns them.
        """
        raise NotImplementedError

    def on_epoch_start(self, encode: Encode) -> None:
        """Prepare an epoch. A training that continues within an epoch does not call it.

        encode: returns the (n, E) vectors of n documents by their positions.
        """

    def on_step_end(self) -> None:
        """Update the state of the loss that is not a parameter, after a step of the optimizer."""


def with_vectors(batch: object, reads: Sequence[str], encoded: Tensor) -> SimpleNamespace:
    """Return the attributes of a batch as tensors.

    Arrays become tensors. Each of the texts ``reads`` becomes its (n, E) vectors; ``tokens`` are the texts of
    the first one.

    encoded: (n * number of reads, E) the vectors of all these texts.
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
    """Encodes texts with gradient, for all layers of an encoder or only for the last ones.

    The other layers are frozen. In models like BERT they run only once for each text (:meth:`fill`).

    outputs: bytes of a text's tokens -> output of the frozen layers, two bytes per number.

    Raises UsageError if the model has fewer than ``train_layers`` layers. 0 stands for all layers.
    """

    def __init__(self, encoder: TextEncoder, train_layers: int = 0) -> None:
        self.encoder = encoder
        self.outputs: dict[bytes, Tensor] = {}
        self._halves: tuple[PreTrainedModel, PreTrainedModel] | None = None
        self._train_layers = train_layers
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
        self, texts: Iterable[NDArray[np.int32]], progress: Callable[[int], object] = ignore_count
    ) -> bool:
        """Run the frozen layers for different texts, and keep their outputs.

        Returns False, and keeps nothing, if the outputs would take too much memory. The batches depend only
        on the texts, so a training can be repeated.

        progress: called with the number of texts of each batch.
        """
        ordered = sorted(texts, key=np.ndarray.tobytes)
        lengths = list(map(len, ordered))
        tokens = sum(lengths) + len(ordered) * self._special_tokens
        if 2 * self.encoder.model.config.hidden_size * tokens > MEMORY_SHARE * _memory():
            return False
        for rows in by_tokens(lengths):
            batch = [ordered[row] for row in rows]
            for text, output in zip(batch, self._lower(batch)):
                self.outputs[text.tobytes()] = output.half()
            progress(len(rows))
        return True

    def encode(self, texts: list[NDArray[np.int32]]) -> Tensor:
        """Return the vectors of n texts with gradient, (n, E).

        Batches of more than MAX_TOKENS tokens, or too large for the memory, are encoded in groups of similar
        length, and again for the gradient (Gao et al. 2021).
        """
        groups = list(by_tokens(list(map(len, texts)), self._max_tokens))
        if len(groups) == 1:
            return self._by_length(texts)
        on_device = next(self.encoder.model.parameters())  # so that its random numbers are repeated

        def encode(rows: list[int], _: Tensor) -> Tensor:
            return self._by_length([texts[row] for row in rows])

        encode_twice = partial(checkpoint, encode, use_reentrant=False)
        vectors = torch.cat([encode_twice(rows, on_device) for rows in groups])
        return vectors[np.argsort(np.concatenate(groups))]

    @cached_property
    def _max_tokens(self) -> int:
        """The tokens that are encoded with gradient at once."""
        if self.encoder.device.type != "cpu":
            return MAX_TOKENS
        config = self.encoder.model.config
        layers = self._train_layers or config.num_hidden_layers
        bytes_of_token = 4 * GRADIENT_NUMBERS * layers * config.hidden_size
        return min(MAX_TOKENS, int(GRADIENT_SHARE * _memory() / bytes_of_token))

    def _by_length(self, texts: list[NDArray[np.int32]]) -> Tensor:
        """Return vectors, (n, E); on a CPU, short and long texts are encoded separately if that is faster."""
        # A GPU takes one large batch in less time than two smaller ones.
        if self.encoder.device.type != "cpu":
            return self._encode(texts)
        groups = by_length(np.array(list(map(len, texts))) + self._special_tokens)
        if len(groups) == 1:
            return self._encode(texts)
        vectors = torch.cat([self._encode([texts[row] for row in rows]) for rows in groups])
        return vectors[np.argsort(np.concatenate(groups))]

    @property
    def _special_tokens(self) -> int:
        """The number of special tokens around each text."""
        return sum(map(len, self.encoder.tokens.frame))

    def unit_vectors(self, texts: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        """Return the vectors of n texts without gradient and dropout, (n, E), of length 1."""
        return self.encoder.encode(texts, self._encode)

    def _encode(self, texts: list[NDArray[np.int32]]) -> Tensor:
        """Return the vectors of texts that are one batch, (n, E)."""
        if self._halves is None:
            with precision(self.encoder.device, self.encoder.precision):
                return self.encoder.forward(*self.encoder.batch(texts))
        outputs = self._lower_outputs(texts)
        padded = nn.utils.rnn.pad_sequence(outputs, batch_first=True)
        masks = [output.new_ones(len(output), dtype=torch.long) for output in outputs]
        mask = nn.utils.rnn.pad_sequence(masks, batch_first=True)
        upper = self._halves[1]
        upper.train(self.encoder.model.training)
        with precision(self.encoder.device, self.encoder.precision):
            out = upper(inputs_embeds=padded, attention_mask=mask).last_hidden_state
            return self.encoder.pooled(out, mask)

    def _lower_outputs(self, texts: list[NDArray[np.int32]]) -> list[Tensor]:
        """Return the outputs of the frozen layers, (T, E) of each text; known ones are not computed again."""
        keys = [text.tobytes() for text in texts]
        new_texts = {key: text for key, text in zip(keys, texts) if key not in self.outputs}
        computed: dict[bytes, Tensor] = {}
        if new_texts:
            computed.update(zip(new_texts, self._lower(list(new_texts.values()))))
        outputs = ChainMap(computed, self.outputs)
        return [outputs[key].float() for key in keys]

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


def _layers(model: PreTrainedModel) -> nn.ModuleList | None:
    """Return the layers of the model; None if it has no list of them."""
    count = model.config.num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    return None


def _halves(
    encoder: TextEncoder, layers: nn.ModuleList, cut: int
) -> tuple[PreTrainedModel, PreTrainedModel] | None:
    """Return a model with the first ``cut`` layers and one with the others. They share the weights.

    None: the encoder is not like BERT, or the halves one after the other do not give its output.
    """
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
            in_one_step = model(input_ids=ids, attention_mask=mask).last_hidden_state
            middle = lower(input_ids=ids, attention_mask=mask).last_hidden_state
            in_two_steps = upper(inputs_embeds=middle, attention_mask=mask).last_hidden_state
    except Exception:  # models differ in the arguments that they accept
        return None
    return (lower, upper) if torch.allclose(in_one_step, in_two_steps, atol=TOLERANCE, rtol=0) else None


def _with_layers(model: PreTrainedModel, layers: nn.Module) -> PreTrainedModel:
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
