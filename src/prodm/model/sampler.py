"""Walking the bridge back from the moving image, and windows over blocks of slices.

``walk`` knows a bridge and a function (xt, y, t) -> x0^, and nothing of networks. From t it
jumps to s < t by

    xs = x0^ + (s / t) (xt - x0^) + sqrt(m s (t - s) / (t T)) z

with fresh noise z, or without it. Without fresh noise the walk stays on the line between y
and the estimates: the answer is the same at every call, but the states carry less noise
than those seen in training. The last jump ends on x0^ itself.

Whole blocks are corrected by sliding a window of k slices over them and keeping the central
slice of each; beyond the first and last slice the block is continued by repeating them. A slice
on which nothing stands out stays as it is: ``may_hold_calcium``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from prodm.errors import ProdmError
from prodm.model import HIGH_HU, LOW_HU
from prodm.model.bridge import BrownianBridge
from prodm.model.network import Denoise

FAINTEST = (80.0 - LOW_HU) / (HIGH_HU - LOW_HU)
Between = Callable[[Tensor], Tensor]  # x0^ [B, k, Y, X] -> x0^, after each network call


@dataclass(frozen=True)
class SamplingSettings:
    """How the bridge is walked back; the defaults are the paper's ten equal jumps."""

    num_jumps: int = 10
    crowding: float = 1.0
    fresh_noise: bool = True
    steps: tuple[int, ...] = ()  # an explicit list instead: from T down to 0

    def descent(self, bridge: BrownianBridge, num_jumps: int | None = None) -> tuple[int, ...]:
        """Steps to visit; ``num_jumps`` takes the place of these settings where it is given."""
        if num_jumps is None and self.steps:
            return bridge.checked_descent(self.steps)
        return bridge.descent(self.num_jumps if num_jumps is None else num_jumps, self.crowding)


def no_change(estimate: Tensor) -> Tensor:
    """Leave an estimate as it is."""
    return estimate


@torch.no_grad()
def walk(
    bridge: BrownianBridge,
    denoise: Denoise,
    y: Tensor,
    steps: Sequence[int],
    *,
    generator: torch.Generator | None,
    between: Between = no_change,
) -> Tensor:
    """Return x0^ [B, C, ...] at the end of the walk from y over ``steps``.

    Args:
        bridge: where the states come from.
        denoise: one estimate of x0 per call; there are ``len(steps) - 1`` calls.
        y: the moving images; the walk starts on them.
        steps: falling from T to 0.
        generator: draws the fresh noise; None walks without it.
        between: changes each estimate before it is used, e.g. to agree with a measurement.
    """
    xt = y
    for t, s in pairwise(bridge.checked_descent(steps)):
        estimate = between(denoise(xt, y, torch.full((len(y),), t, device=y.device)))
        xt, variance = bridge.posterior(xt, estimate, t=t, s=s)
        if generator is not None and variance > 0:
            xt = xt + variance**0.5 * normal_like(y, generator)
    return xt


def normal_like(image: Tensor, generator: torch.Generator) -> Tensor:
    """Draw N(0, 1) of an image's shape, on its device whatever that of the generator."""
    noise = torch.randn(
        image.shape, generator=generator, device=generator.device, dtype=image.dtype
    )
    return noise.to(image.device)


def slice_windows(blocks: Tensor, num_slices: int) -> Tensor:
    """Return the window around each slice of blocks [B, Z, Y, X], as [B * Z, k, Y, X].

    >>> slice_windows(torch.tensor([[[[1]], [[2]], [[3]]]]), num_slices=3).flatten(1).tolist()
    [[1, 1, 2], [1, 2, 3], [2, 3, 3]]
    """
    if num_slices < 1 or num_slices % 2 == 0:
        raise ProdmError(f"a window needs an odd number of slices, got {num_slices}")
    num_blocks, depth, height, width = blocks.shape
    half = num_slices // 2
    around = torch.arange(depth)[:, None] + torch.arange(-half, half + 1)
    windows = blocks[:, around.clamp(0, depth - 1).to(blocks.device)]
    return windows.reshape(num_blocks * depth, num_slices, height, width)


def may_hold_calcium(blocks: Tensor) -> Tensor:
    """Tell the slices of blocks [B, Z, Y, X] in [0, 1] on which calcium may be, as [B * Z].

    Somewhere the mean of 3 x 3 pixels must reach 80 HU; below it nothing can be told from noise.
    """
    slices = blocks.flatten(0, 1)[:, None]
    brightest = functional.avg_pool2d(slices, 3, stride=1).amax(dim=(1, 2, 3))
    return brightest >= FAINTEST


def correct_blocks(
    predict: Callable[[Tensor], Tensor], blocks: Tensor, num_slices: int, max_windows: int = 256
) -> Tensor:
    """Return corrected blocks [B, Z, Y, X], all in [0, 1].

    ``predict`` maps windows [N, k, Y, X] to corrected ones. All windows of all blocks that may
    hold calcium go to it together, in parts of at most ``max_windows`` so that memory stays
    bounded.
    """
    wanted = may_hold_calcium(blocks)
    corrected = blocks.flatten(0, 1).clone()
    if wanted.any():
        windows = slice_windows(blocks, num_slices)[wanted]
        parts = [predict(part) for part in torch.split(windows, max_windows)]
        corrected[wanted] = torch.cat(parts)[:, num_slices // 2]
    return corrected.reshape(blocks.shape)
