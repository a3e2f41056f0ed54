"""A second look, once the motion is known: what the lesion is, in the place where it rests.

A separator tells what moves without knowing how, and what it misses is missing from the lesion.
Once a motion was found, the image itself can be seen with that motion undone: calcium is sharp
there and all else is smeared. Edges of lung and bone would drown small lesions there, so that only
the fine detail of the image is looked at, what is finer than seven pixels, and no edge counts more
than a faint lesion. A *focuser* looks at five images of each slice:

    seen        the image
    moving      what a separator took to move
    detail      the fine detail of the image, with the motion undone
    refocused   what moves, put back in focus (``FoundMotion.refocus``)
    odds        the separator's odds that calcium rests here

and says what calcium there is at rest, over its background, in the frame of the motion that was
found: where that puts the lesion, be it right or wrong. It learns from motions that were found,
with all their errors (``prodm.training.findings``), and so also what is left to do where one is a
little wrong.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from prodm.errors import ProdmError
from prodm.model import HIGH_HU, LOW_HU
from prodm.model.losses import Batch, LossSettings, Parts, agatston_loss
from prodm.model.motions import FoundMotion
from prodm.model.network import NetworkSettings, folded_unet
from prodm.model.sampler import slice_windows

VIEWS = ("seen", "moving", "detail", "refocused", "odds")
REFOCUSED = VIEWS.index("refocused")
LOWEST_HU = torch.tensor([-200.0, -300.0, -200.0, 0.0, 0.0])  # of each view; networks see no less
HIGHEST_HU = torch.tensor([800.0, 1200.0, 600.0, 1500.0, 1.0])  # and no more
SCALE_HU = torch.tensor([500.0, 500.0, 100.0, 500.0, 1.0])  # odds have no unit
TISSUE_HU = (-120.0, 300.0)  # beyond it, lung and bone are cut off before detail is looked for
COARSE_PX = 7  # detail is finer
MOST_DETAIL_HU = 120.0
NUM_MAPS = 2
GATE_GAIN, GATE_START = 4.0, 2.0  # an untrained network leaves nearly all that was refocused
SHOWS_HU = 20.0  # calcium at rest that counts in the loss
GRAIN_HU = 60.0  # what was refocused and is less is grain, most of it
ERROR_HU = 100.0  # so that both parts of the loss are of the same size


class Focuser(nn.Module):
    """MONAI's network between folding and unfolding, from views to calcium at rest."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.settings = settings
        self.body = folded_unet(settings, num_in=len(VIEWS) * settings.num_slices, num_out=NUM_MAPS)

    def forward(self, xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
        """Return calcium at rest in HU, [B, 1, Y, X], of windows of views [B, 5 k, Y, X]."""
        num_slices, divisor = self.settings.num_slices, self.settings.divisor
        if y.shape[1] != len(VIEWS) * num_slices or y.shape[2] % divisor or y.shape[3] % divisor:
            raise ProdmError(
                f"this focuser takes {len(VIEWS)} views of {num_slices} slices whose height and "
                f"width are multiples of {divisor}, got {tuple(y.shape[1:])}"
            )
        views = y.reshape(len(y), len(VIEWS), num_slices, *y.shape[2:])
        low, high, scale = (
            limit.to(y)[:, None, None, None] for limit in (LOWEST_HU, HIGHEST_HU, SCALE_HU)
        )
        seen = (views.clamp(low, high) / scale).flatten(1, 2)
        folded = functional.pixel_unshuffle(seen, self.settings.fold)
        maps = self.body(folded, torch.zeros(len(y), device=y.device))
        unfolded = without_grid(functional.pixel_shuffle(maps, self.settings.fold))
        added, gate = unfolded.chunk(NUM_MAPS, dim=1)
        refocused = views[:, REFOCUSED, num_slices // 2, None]
        still = (refocused + SCALE_HU[REFOCUSED] * added).clamp(min=0)
        calcium: Tensor = still * torch.sigmoid(GATE_GAIN * gate + GATE_START)
        return calcium


def without_grid(maps: Tensor) -> Tensor:
    """Return maps [B, K, Y, X] without what changes from each pixel to the next.

    Unfolding may leave a grid of dots, which a loss of the score even rewards: dots raise the peak
    and the area of a lesion that is uncertain. Neighbours count 1, 2 and 1 quarter, along x
    and along y, so that a pattern of two pixels is gone. What was refocused passes by it.
    """
    for dimension in (-2, -1):
        size = maps.shape[dimension]
        ends = maps.narrow(dimension, 0, 1), maps.narrow(dimension, size - 1, 1)
        padded = torch.cat([ends[0], maps, ends[1]], dim=dimension)
        low, high = padded.narrow(dimension, 0, size), padded.narrow(dimension, 2, size)
        maps = maps / 2 + (low + high) / 4
    return maps


def look_again(block_hu: Tensor, moving_hu: Tensor, odds: Tensor, motion: FoundMotion) -> Tensor:
    """Return the views [5, Z, Y, X] of a block [Z, Y, X] and a motion that was found."""
    views = {
        "seen": block_hu,
        "moving": moving_hu,
        "detail": undone(detail(block_hu), motion),
        "refocused": motion.refocus(moving_hu),
        "odds": odds,
    }
    return torch.stack([views[name] for name in VIEWS])


def detail(
    block_hu: Tensor,
    tissue_hu: tuple[float, float] = TISSUE_HU,
    most_hu: float = MOST_DETAIL_HU,
) -> Tensor:
    """Return what is finer than ``COARSE_PX`` in blocks [..., Z, Y, X], edges of tissue cut short.

    Tissue beyond ``tissue_hu`` is cut off first, and detail beyond ``most_hu`` after that.
    """
    tissue = block_hu.clamp(*tissue_hu)
    around = functional.pad(tissue, (COARSE_PX // 2,) * 4, mode="reflect")
    fine = tissue - functional.avg_pool2d(around, COARSE_PX, stride=1)
    return fine.clamp(-most_hu, most_hu)


def undone(block_hu: Tensor, motion: FoundMotion) -> Tensor:
    """Return a block [Z, Y, X] as if all of it had moved, with that undone.

    It is mirrored by half its size on every side first: its border must not drown the calcium.
    """
    top, left = block_hu.shape[-2] // 2, block_hu.shape[-1] // 2
    around = (left, left, top, top)
    mirrored = functional.pad(block_hu[None], around, mode="reflect")[0]
    level = mirrored.mean()
    back = motion.undo(mirrored - level, padding=0) + level
    return back[..., top : top + block_hu.shape[-2], left : left + block_hu.shape[-1]]


def focus(
    views: Tensor,
    predict: Callable[..., Tensor],
    num_slices: int,
    wanted: Tensor | None = None,
) -> Tensor:
    """Return the calcium at rest [Z, Y, X] that a trained focuser, or a polisher, sees, in HU.

    It looks at the slices that are ``wanted`` [Z], at all without it, and sees nothing elsewhere.
    """
    depth = views.shape[1]
    windows = slice_windows(views, num_slices).reshape(len(views), depth, -1, *views.shape[2:])
    wanted = torch.ones(depth, dtype=torch.bool) if wanted is None else wanted
    calcium = torch.zeros_like(views[0])
    if wanted.any():
        shown = windows.transpose(0, 1)[wanted].flatten(1, 2)
        calcium[wanted] = predict(shown, torch.Generator())[:, 0]  # draws nothing
    return calcium


def focusing_loss(calcium_hu: Tensor, batch: Batch, settings: LossSettings) -> tuple[Tensor, Parts]:
    """Return how wrong calcium at rest [B, 1, Y, X] is, pixel by pixel and in its score.

    ``batch.views`` are what it was told from, ``batch.still`` and ``batch.background`` the truth
    in the frame of the motion that was found.
    """
    if batch.views is None or batch.background is None:
        raise ProdmError("a focuser learns from motions that were found")
    true_hu = (HIGH_HU - LOW_HU) * (batch.still - batch.background)
    num_slices = batch.views.shape[1] // len(VIEWS)
    refocused = batch.views[:, REFOCUSED * num_slices + num_slices // 2, None]
    counts = (true_hu > SHOWS_HU) | (calcium_hu > SHOWS_HU) | (refocused > GRAIN_HU)
    away = (counts * (calcium_hu - true_hu).abs()).sum() / counts.sum().clamp(min=1) / ERROR_HU
    score = agatston_loss(batch.background + calcium_hu / (HIGH_HU - LOW_HU), batch, settings)
    parts = {"absolute": away.detach(), "calcium": score.detach()}
    return away + settings.weight * score, parts
