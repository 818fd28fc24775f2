"""Cached outputs of frozen layers."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rerank.errors import UsageError
from rerank.rankers.encoder.transformer import TOKENS, TextEncoder, precision

MEMORY = 0.25
"""Share of the free memory that the outputs may take."""
TOLERANCE = 1e-4
"""Largest difference between the model and its two halves, one after the other."""


class FrozenLayerCache:
    """Encoder layers before the last ``train_layers``.

    BERT-like models cache outputs, two bytes per number; others run all layers.

    Raises UsageError for too few layers.
    """

    def __init__(self, encoder: TextEncoder, train_layers: int, autocast: str = "auto") -> None:
        self.encoder, self.autocast = encoder, autocast
        layers = _layers(encoder.model)
        if layers is None or not 1 <= train_layers <= len(layers):
            there = "no separate layers" if layers is None else f"{len(layers)} layers"
            raise UsageError(f"the model has {there}; the last {train_layers} cannot be trained")
        for parameter in encoder.model.parameters():
            parameter.requires_grad_(False)
        for parameter in layers[-train_layers:].parameters():
            parameter.requires_grad_(True)
        self._halves = _halves(encoder, layers, len(layers) - train_layers)
        self.outputs: dict[bytes, Tensor] = {}

    def fill(
        self,
        texts: Callable[[], Iterable[NDArray[np.int32]]],
        progress: Callable[[int], object] | None = None,
    ) -> bool:
        """Cache outputs of texts; False on a GPU or without enough memory.

        Fixed batches make training reproducible.
        """
        if self._halves is None or self.encoder.device.type == "cuda":
            return False
        special, room = sum(len(part) for part in self.encoder.tokens.frame), MEMORY * _free()
        for text in texts():
            room -= 2 * self.encoder.model.config.hidden_size * (len(text) + special)
            if room < 0:
                return False
        different = {text.tobytes(): text for text in texts()}
        keys = sorted(different, key=lambda key: (-len(key), key))
        start = 0
        while start < len(keys):
            some = keys[start : start + max(1, TOKENS // (len(different[keys[start]]) + special))]
            states, mask = self._lower([different[key] for key in some])
            for key, state, count in zip(some, states.half(), mask.sum(dim=1).tolist()):
                self.outputs[key] = state[:count].clone()
            start += len(some)
            if progress is not None:
                progress(len(some))
        return True

    def vectors(self, texts: list[NDArray[np.int32]]) -> Tensor:
        """Return vectors with gradient, (n, E)."""
        if self._halves is None:
            with precision(self.encoder.device, self.autocast):
                return self.encoder.forward(*self.encoder.batch(texts))
        outputs = [self.outputs.get(text.tobytes()) for text in texts]
        missing = [i for i, output in enumerate(outputs) if output is None]
        if missing:
            states, mask = self._lower([texts[i] for i in missing])
            for i, state, count in zip(missing, states, mask.sum(dim=1).tolist()):
                outputs[i] = state[:count]
        rows = [output.float() for output in outputs if output is not None]
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows], device=padded.device)
        mask = (torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]).long()
        upper = self._halves[1]
        upper.train(self.encoder.model.training)
        with precision(self.encoder.device, self.autocast):
            out = upper(inputs_embeds=padded, attention_mask=mask).last_hidden_state
            return self.encoder.pooled(out, mask)

    def _lower(self, texts: list[NDArray[np.int32]]) -> tuple[Tensor, Tensor]:
        """Return lower outputs, (n, T, E), and mask, (n, T)."""
        assert self._halves is not None
        lower = self._halves[0].eval()
        with torch.no_grad(), precision(self.encoder.device, self.autocast):
            ids, mask = self.encoder.batch(texts)
            states: Tensor = lower(input_ids=ids, attention_mask=mask).last_hidden_state
        return states, mask


class _Identity(nn.Module):
    """Replaces the upper half's embeddings."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> Tensor:
        return inputs_embeds


def _layers(model: Any) -> nn.ModuleList | None:
    count = model.config.num_hidden_layers
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return next((one for one in lists if len(one) == count), None)


def _halves(encoder: TextEncoder, layers: nn.ModuleList, cut: int) -> tuple[Any, Any] | None:
    """Split at layer ``cut`` with shared weights; None if impossible."""
    model = encoder.model
    if not cut or getattr(getattr(model, "encoder", None), "layer", None) is not layers:
        return None
    lower, upper = _with_layers(model, layers[:cut]), _with_layers(model, layers[cut:])
    upper.embeddings = _Identity()
    before, after = encoder.tokens.frame
    ids = torch.tensor([[*before, *range(5, 12), *after]], device=encoder.device)
    mask = torch.ones_like(ids)
    model.eval(), lower.eval(), upper.eval()
    try:
        with torch.no_grad():
            whole = model(input_ids=ids, attention_mask=mask).last_hidden_state
            middle = lower(input_ids=ids, attention_mask=mask).last_hidden_state
            again = upper(inputs_embeds=middle, attention_mask=mask).last_hidden_state
    except Exception:  # models differ in the arguments that they accept
        return None
    return (lower, upper) if torch.allclose(whole, again, atol=TOLERANCE, rtol=0) else None


def _with_layers(model: Any, layers: Any) -> Any:
    outer, inner = _shallow(model), _shallow(model.encoder)
    inner.layer, outer.encoder = layers, inner
    return outer


def _shallow(module: Any) -> Any:
    found = copy.copy(module)
    found._modules = dict(module._modules)
    return found


def _free() -> int:
    """Return free memory in bytes."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 1 << 32
