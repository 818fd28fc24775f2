"""One training on several devices: started by ``torchrun``, each process encodes its share of every batch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed

from rerank.errors import UsageError
from rerank.wording import amount


@dataclass(frozen=True)
class Group:
    """The processes of a training; alone: one of one."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls) -> Group:
        """Join the group that ``torchrun`` has set up; without one, be alone."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        cuda, place = torch.cuda.is_available(), int(os.environ.get("LOCAL_RANK", "0"))
        if cuda and place >= (there := torch.cuda.device_count()):
            raise UsageError(
                f"torchrun has started at least {amount(place + 1, 'process[|es]')} here, for"
                f" {amount(there, 'GPU[|s]')}; start one for each"
            )
        if cuda:
            torch.cuda.set_device(place)
        if not distributed.is_initialized():
            distributed.init_process_group("nccl" if cuda else "gloo")
        return cls(distributed.get_rank(), size)

    def gathered(self, mine: Tensor, counts: list[int]) -> Tensor:
        """Rows of all processes, in order: (counts[rank], E) each -> (sum of counts, E). No gradient."""
        if self.size == 1:
            return mine
        padded = mine.new_zeros((max(counts), mine.shape[1]))
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in counts]
        distributed.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts)])

    def add_gradients(self, model: torch.nn.Module) -> None:
        """Sum the gradients of all processes into each."""
        if self.size == 1:
            return
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad)

    def agreed(self, value: Any) -> Any:
        """What the first process has: all go on with the same."""
        if self.size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def leave(self) -> None:
        """Wait for all, and end the group."""
        if self.size > 1 and distributed.is_initialized():
            distributed.barrier()
            distributed.destroy_process_group()
