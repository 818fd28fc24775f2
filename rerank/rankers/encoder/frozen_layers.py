"""The layers of an encoder that keep their weights, and what they make of a text: computed once."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rerank.errors import UsageError
from rerank.rankers.encoder.transformer import TOKENS, TextEncoder, precision

MEMORY = 0.25
"""Share of the free memory that kept states may take."""
BATCH = 64
"""Texts whose upper half is computed at once, without gradient."""
CLOSE = 1e-4
"""What the two halves of a model, one after the other, may differ from the whole."""


class LowerLayers:
    """All but the last ``train_layers`` layers of an encoder, whose weights no longer change.

    Training needs no gradient of them, and so they are cut off where the model lets them (those built like
    BERT do): the lower half's output for a text is computed once and kept in memory, at two bytes a number,
    where it fits; a GPU computes it in less time than it takes to bring it there. Other models are trained
    whole, with these weights fixed.
    """

    def __init__(self, encoder: TextEncoder, train_layers: int, asked: str = "auto") -> None:
        self.encoder, self.asked = encoder, asked
        layers = _layers(encoder.model)
        if layers is None or not 1 <= train_layers <= len(layers):
            there = "layers that cannot be told apart" if layers is None else f"{len(layers)} layers"
            raise UsageError(f"the model has {there}; {train_layers} of them cannot be trained alone")
        for parameter in encoder.model.parameters():
            parameter.requires_grad_(False)
        for layer in layers[-train_layers:]:
            for parameter in layer.parameters():
                parameter.requires_grad_(True)
        self._halves = _halves(encoder, layers, len(layers) - train_layers)
        self._framed = sum(len(part) for part in encoder.frame)
        self._at: dict[bytes, int] = {}
        self._starts: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self._states = torch.zeros((0, encoder.width), dtype=torch.float16)

    def keep(
        self,
        texts: Callable[[], Iterable[NDArray[np.int32]]],
        progress: Callable[[int], object] | None = None,
    ) -> bool:
        """Compute and keep the states of all the texts that ``texts`` iterates over, which is called twice;
        False where they do not fit, or on a GPU.

        Always in the same order and batches, so that a training that goes on finds the same numbers.
        """
        if self._halves is None or self.encoder.device.type == "cuda" or not self._fits(texts()):
            return False
        different = {text.tobytes(): text for text in texts()}
        keys = sorted(different, key=lambda key: (-len(key), key))
        lengths = np.array([len(different[key]) + self._framed for key in keys], dtype=np.int64)
        self._starts = np.concatenate(([0], np.cumsum(lengths)))
        self._states = torch.zeros((int(lengths.sum()), self.encoder.width), dtype=torch.float16)
        at = 0
        while at < len(keys):
            some = keys[at : at + max(1, TOKENS // int(lengths[at]))]
            states, mask = self._lower([different[key] for key in some])
            begin, end = self._starts[at], self._starts[at + len(some)]
            self._states[begin:end] = states[mask.bool()].to("cpu", torch.float16)
            at += len(some)
            if progress is not None:
                progress(len(some))
        self._at = {key: place for place, key in enumerate(keys)}
        return True

    def take(self, other: LowerLayers) -> None:
        """Take over what another one has kept, of an encoder whose lower layers are the same."""
        self._at, self._starts, self._states = other._at, other._starts, other._states

    def _fits(self, texts: Iterable[NDArray[np.int32]]) -> bool:
        room, of_token = MEMORY * _free(), 2 * self.encoder.width
        for text in texts:
            room -= of_token * (len(text) + self._framed)
            if room < 0:
                return False
        return True

    def encode(self, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """(n, E) vectors of length 1, as ``TextEncoder.encode`` gives them."""
        if not self._at:
            return self.encoder.encode(sequences)
        self.encoder.model.eval()
        parts = []
        with torch.inference_mode():
            for begin in range(0, len(sequences), BATCH):
                texts = [np.array(one, dtype=np.int32) for one in sequences[begin : begin + BATCH]]
                found = self.vectors(texts)
                assert found is not None
                parts.append(nn.functional.normalize(found, dim=1).float().cpu().numpy())
        return np.concatenate(parts)

    def vectors(self, texts: list[NDArray[np.int32]]) -> Tensor | None:
        """(n, E) vectors of texts, with gradient in the upper layers; None where the model is not cut."""
        if self._halves is None:
            return None
        keys = [text.tobytes() for text in texts]
        fresh = [i for i, key in enumerate(keys) if key not in self._at]
        longest, device = max(len(text) for text in texts) + self._framed, self.encoder.device
        states = torch.zeros((len(texts), longest, self.encoder.width), device=device)
        mask = torch.zeros((len(texts), longest), dtype=torch.long, device=device)
        if fresh:
            found, there = self._lower([texts[i] for i in fresh])
            states[fresh, : found.shape[1]] = found.float()
            mask[fresh, : there.shape[1]] = there
        for i, key in enumerate(keys):
            if key in self._at:
                place = self._at[key]
                kept = self._states[self._starts[place] : self._starts[place + 1]]
                states[i, : len(kept)] = kept
                mask[i, : len(kept)] = 1
        upper = self._halves[1]
        upper.train(self.encoder.model.training)
        with precision(self.encoder.device, self.asked):
            out = upper(inputs_embeds=states, attention_mask=mask).last_hidden_state
            return self.encoder.pooled(out, mask)

    def _lower(self, texts: list[NDArray[np.int32]]) -> tuple[Tensor, Tensor]:
        assert self._halves is not None
        lower = self._halves[0].eval()
        with torch.no_grad(), precision(self.encoder.device, self.asked):
            ids, mask = self.encoder.batch(texts)
            states: Tensor = lower(input_ids=ids, attention_mask=mask).last_hidden_state
        return states, mask


class _Given(nn.Module):
    """Stands for the embeddings: hands on what the lower half made."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> Tensor:
        return inputs_embeds


def _layers(model: Any) -> nn.ModuleList | None:
    """The list of the model's layers: as many modules of one class as its configuration says."""
    count = model.config.num_hidden_layers
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return next((one for one in lists if len(one) == count), None)


def _halves(encoder: TextEncoder, layers: nn.ModuleList, cut: int) -> tuple[Any, Any] | None:
    """The model up to layer ``cut`` and from there on, sharing its weights; None where that fails."""
    model = encoder.model
    if not cut or getattr(getattr(model, "encoder", None), "layer", None) is not layers:
        return None
    lower, upper = _with_layers(model, layers[:cut]), _with_layers(model, layers[cut:])
    upper.embeddings = _Given()
    before, after = encoder.frame
    ids = torch.tensor([[*before, *range(5, 12), *after]], device=encoder.device)
    mask = torch.ones_like(ids)
    model.eval(), lower.eval(), upper.eval()
    try:
        with torch.no_grad():
            whole = model(input_ids=ids, attention_mask=mask).last_hidden_state
            middle = lower(input_ids=ids, attention_mask=mask).last_hidden_state
            again = upper(inputs_embeds=middle, attention_mask=mask).last_hidden_state
    except Exception:  # whatever a model of another make says to this
        return None
    return (lower, upper) if torch.allclose(whole, again, atol=CLOSE, rtol=0) else None


def _with_layers(model: Any, layers: Any) -> Any:
    """A shallow copy of the model with some of its layers."""
    outer, inner = _shallow(model), _shallow(model.encoder)
    inner.layer = layers
    outer.encoder = inner
    return outer


def _shallow(module: Any) -> Any:
    found = copy.copy(module)
    found._modules = dict(module._modules)
    return found


def _free() -> int:
    """Bytes of memory that are free."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 1 << 32
