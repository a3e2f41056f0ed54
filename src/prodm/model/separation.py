"""What a separator learns: to tell what moves from what lies behind it, and where it rests.

Its network looks at windows of k slices and returns three maps for each slice:

    gate         log-odds that calcium passes here, with its streaks
    brighter     by how much calcium makes the image brighter here, smoothed, in [0, 1]
    still        log-odds that calcium rests here

The background is the image, smoothed, less what makes it brighter, and what moves is
gate x (y - background). Three simple questions are learnt much faster than the
product that they make up: a regression of what moves leaves every gate half open where
it is not sure, and half a lesion that stays behind is worse than none. The grain of the image
need not be known: with the true tissue smoothed over a few pixels, and the gate open where
calcium shows by more than 20 HU, the phase does nearly as well as with the truth
(``benchmarks/phase_limits.py``).
"""

import torch
from torch import Tensor
from torch.nn import functional

from prodm.errors import ProdmError
from prodm.model import HIGH_HU, LOW_HU
from prodm.model.losses import Batch, Parts
from prodm.physics import phase

NUM_MAPS = 3
SHOWS = 20.0 / (HIGH_HU - LOW_HU)  # calcium that passes changes the image by more than this
RESTS = 60.0 / (HIGH_HU - LOW_HU)  # and calcium at rest by this
SMOOTH_PX = 5
OPEN = (0.2, 0.5)  # odds at which a gate begins to open, and is open
FILLED = 3.0  # a gate is open where a third of its surroundings show calcium
BACKGROUND_WEIGHT = 10.0  # the three losses are then of the same size
STILL_WEIGHT = 10.0
REFOCUSED_WEIGHT = 10.0
PADDING = 32


def separation_loss(maps: Tensor, batch: Batch) -> tuple[Tensor, Parts]:
    """Return how wrong the maps [B, 3 k, Y, X] of a batch are, and the parts of it."""
    if batch.background is None:
        raise ProdmError("a separator learns from batches that hold the background")
    gate, brighter, still = maps.chunk(NUM_MAPS, dim=1)
    passes = where_calcium_passes(batch.moving, batch.background)
    rests = (batch.still - batch.background > RESTS).to(maps)
    gate_loss = functional.binary_cross_entropy_with_logits(gate, passes)
    away = (brighter - smoothed(batch.moving - batch.background)).abs()
    background_loss = (passes * away).sum() / passes.sum().clamp(min=1)
    still_loss = functional.binary_cross_entropy_with_logits(still, rests)
    total = gate_loss + BACKGROUND_WEIGHT * background_loss + STILL_WEIGHT * still_loss
    parts = {"gate": gate_loss, "background": background_loss, "still": still_loss}
    if batch.displacement is not None and batch.start_rad is not None:
        angles = phase.view_angles_rad(batch.displacement.shape[1], start_rad=batch.start_rad)
        shift_px = phase.shift_of(batch.displacement[..., :2], angles)
        refocused_loss = _refocused_loss(
            maps, batch.moving, batch.background, (shift_px, batch.start_rad)
        )
        total = total + REFOCUSED_WEIGHT * refocused_loss
        parts["refocused"] = refocused_loss
    return total, {name: value.detach() for name, value in parts.items()}


def _refocused_loss(
    maps: Tensor, moving: Tensor, background: Tensor, motion: tuple[Tensor, Tensor]
) -> Tensor:
    """Return how wrong what moves is once the true motion is undone, where calcium then is.

    Errors that are small everywhere add up there: this is what the score sees. Calcium that
    the maps alone put there counts too.
    """
    shift_px, start_rad = motion

    def undone(image: Tensor) -> Tensor:
        focused: Tensor = phase.undo(image, shift_px, start_rad=start_rad, padding=PADDING)
        return focused

    true = undone(moving - background)
    seen = undone(what_moves(maps, moving))
    counts = ((true > RESTS) | (seen > RESTS)).to(true)
    return (counts * (seen - true).abs()).sum() / counts.sum().clamp(min=1)


def where_calcium_passes(moving: Tensor, background: Tensor) -> Tensor:
    """Return a soft mask, 0 to 1, of where moving calcium shows."""
    shows = ((moving - background).abs() > SHOWS).to(moving)
    return (FILLED * smoothed(shows)).clamp(max=1)


def smoothed(image: Tensor) -> Tensor:
    """Return the mean over a square around each pixel."""
    return functional.avg_pool2d(
        image, SMOOTH_PX, stride=1, padding=SMOOTH_PX // 2, count_include_pad=False
    )


def opened(gate: Tensor) -> Tensor:
    """Return how far gates are open, 0 to 1, from their log-odds.

    They open fully where calcium is as likely to pass as not: the faint ends of its streaks
    are never sure, and what stays behind of them is missing from the lesion.
    """
    shut, full = OPEN
    return ((torch.sigmoid(gate) - shut) / (full - shut)).clamp(0, 1)


def background_and_still(maps: Tensor, y: Tensor) -> Tensor:
    """Return the image without what moves, and the odds of calcium at rest, [B, 2 k, Y, X]."""
    _, _, still = maps.chunk(NUM_MAPS, dim=1)
    return torch.cat([y - what_moves(maps, y), torch.sigmoid(still)], dim=1)


def what_moves(maps: Tensor, y: Tensor) -> Tensor:
    """Return what calcium adds to the image."""
    gate, brighter, _ = maps.chunk(NUM_MAPS, dim=1)
    return opened(gate) * (y - smoothed(y) + brighter)
