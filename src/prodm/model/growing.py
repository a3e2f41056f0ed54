"""Make a trained network deeper without changing what it says.

A network that has learnt what its size allows goes on from there with more residual blocks, each
of which adds nothing at first: the last convolution of a new block is zero, and on the way up,
where blocks are handed images from the way down as well, a new one leaves these out.

On the way down new blocks follow the old ones of a level. On the way up they come after the first,
which is handed what the last block of the way down made: so each old block is handed what it was.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from prodm.errors import ProdmError
from prodm.model.checkpoint import load_network
from prodm.model.network import NetworkSettings

_BLOCK = re.compile(r"(.*(down|up)_blocks\.\d+\.resnets\.)(\d+)\.(.*)")
_SKIP = "skip_connection.conv.weight"


def starting_weights(path: Path, new: NetworkSettings, network: nn.Module) -> dict[str, Tensor]:
    """Return weights from disk for a network as large as theirs, or one with more blocks."""
    trained = load_network(path)
    state, old = trained.network.state_dict(), trained.settings.network
    if old == new:
        return state
    differs_in_more = replace(old, num_res_blocks=new.num_res_blocks) != new
    if differs_in_more or new.num_res_blocks < old.num_res_blocks:
        raise ProdmError(f"the weights in {path} are of a network of another size")
    return deepened(state, network.state_dict(), old, new)


def deepened(
    state: Mapping[str, Tensor],
    fresh: Mapping[str, Tensor],
    old: NetworkSettings,
    new: NetworkSettings,
) -> dict[str, Tensor]:
    """Return the weights of a network with more residual blocks that does what ``state`` does.

    ``fresh`` are the untrained weights of the new network.
    """
    if any(new.attention):
        raise ProdmError("a network with attention on its levels cannot be made deeper")
    added = new.num_res_blocks - old.num_res_blocks
    grown = dict(fresh)
    for name in fresh:
        block = _BLOCK.fullmatch(name)
        before = name if block is None else _name_before(block, old.num_res_blocks, added)
        if before is not None:
            grown[name] = state[before]
        elif name.endswith(_SKIP):
            grown[name] = _first_channels(fresh[name])
        elif name.endswith("skip_connection.conv.bias") or "conv2" in name:
            grown[name] = torch.zeros_like(fresh[name])
    return grown


def _name_before(block: re.Match[str], num_old: int, num_added: int) -> str | None:
    """Name that weights of a block had before; None of a new block."""
    start, way, place, rest = block.groups()
    index = int(place)
    if way == "down":
        return block.group(0) if index < num_old else None
    if 1 <= index <= num_added:
        return None
    return f"{start}{index if index == 0 else index - num_added}.{rest}"


def _first_channels(weight: Tensor) -> Tensor:
    """Return a 1 x 1 convolution that passes on the first channels and no others."""
    passes = torch.zeros_like(weight)
    passes[:, : len(weight), 0, 0] = torch.eye(len(weight)).to(weight)
    return passes
