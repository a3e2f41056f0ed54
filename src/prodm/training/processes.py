"""What a training loop needs to run in one process or in several that ``torchrun`` started."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@contextmanager
def process_group() -> Iterator[tuple[int, int, torch.device]]:
    """Join the processes that ``torchrun`` started, if any; give rank, count and device."""
    cuda = torch.cuda.is_available()
    if not torch.distributed.is_torchelastic_launched():
        yield 0, 1, torch.device("cuda" if cuda else "cpu")
        return
    torch.distributed.init_process_group("nccl" if cuda else "gloo")
    try:
        rank = torch.distributed.get_rank()
        local = rank % torch.cuda.device_count() if cuda else 0
        device = torch.device("cuda", local) if cuda else torch.device("cpu")
        yield rank, torch.distributed.get_world_size(), device
    finally:
        torch.distributed.destroy_process_group()


def agreed(seconds: float, num_processes: int) -> float:
    """The time of the first process, so that all stop at the same step."""
    if num_processes == 1:
        return seconds
    value = torch.tensor([seconds], dtype=torch.float64)
    torch.distributed.broadcast(value, src=0)
    return float(value)


def autocast(device: torch.device) -> torch.autocast:
    """Mixed precision where the hardware has it; CPUs are many times slower with it."""
    fits = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=fits)


@contextmanager
def gradients_meet(player: nn.Module, *, last: bool) -> Iterator[None]:
    """Let processes exchange gradients only with the last of their shards."""
    if isinstance(player, DistributedDataParallel) and not last:
        with player.no_sync():
            yield
    else:
        yield


def inner(player: nn.Module) -> nn.Module:
    """Return the player itself, without what averages its gradients."""
    return player.module if isinstance(player, DistributedDataParallel) else player
