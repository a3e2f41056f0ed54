"""What a tuner learns from: blocks that move, and what a separator sees move in them.

Each block is moved afresh, as training windows are, and cut somewhere. Of it are kept the five
slices in which most seems to move, and how they moved:

    seen        [Z, Y, X]  the image, in HU
    moving      [Z, Y, X]  what the separator took to move, in HU
    shift_px    [views]    s
    start_rad   [1]        the angle at which the scan starts

The motion that is undone is drawn anew at every visit: the true one with an error of the size that
a search leaves (``prodm.model.tuning.draw_errors``), at any place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from prodm.model.focusing import detail
from prodm.model.losses import Batch
from prodm.model.motions import FoundMotion
from prodm.model.phasing import Separator, may_move, separate_by_network
from prodm.model.tuning import (
    MOVING_HU,
    centres_rad,
    draw_errors,
    look_apart,
    strongest_slices,
)
from prodm.pairs.blocks import BLOCK_SHAPE, MARGIN
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS
from prodm.training.windows import Block, WindowSettings, drawn_motion, mirror, until_made

AROUND = 3  # slices above and below one with calcium that a separator looks at
PLACE_PX = 1.5  # standard deviation of the place, along x and along y


@dataclass(frozen=True, eq=False)
class Scene:
    """What moves in some slices of a block, and how."""

    seen: NDArray[np.int16]
    moving: NDArray[np.int16]
    shift_px: NDArray[np.float32]
    start_rad: NDArray[np.float32]


def draw_scene(
    blocks: Sequence[Block], separator: Separator, settings: WindowSettings, seed: Sequence[int]
) -> Scene:
    """Move blocks until something seems to move in one."""
    return until_made(
        blocks, settings, seed, lambda block, rng: move(block, separator, settings, rng)
    )


def move(
    block: Block, separator: Separator, settings: WindowSettings, rng: np.random.Generator
) -> Scene | None:
    """Move a block; None where a separator sees nothing move."""
    mirrors = rng.random(3) < 0.5
    still, background = (
        torch.from_numpy(mirror(image, mirrors).astype(np.float32))
        for image in (block.still, block.background)
    )
    true = drawn_motion(block, settings, rng)
    calcium = still - background
    moved = background + true.apply(calcium) if calcium.any() else background
    depth, height, width = BLOCK_SHAPE
    top, left = rng.integers(0, 2 * np.array(MARGIN[1:]) + 1)
    inside = (slice(MARGIN[0], MARGIN[0] + depth), slice(top, top + height))
    moved, calcium = (image[*inside, left : left + width] for image in (moved, calcium))
    held = torch.nonzero(calcium.any(dim=2).any(dim=1)).flatten().numpy()
    middle = int(rng.choice(held if len(held) else np.arange(depth)))
    first = min(max(middle - AROUND, 0), depth - 2 * AROUND - 1)
    seen = moved[first : first + 2 * AROUND + 1].contiguous()
    moving = seen - separate_by_network(seen[None], separator).background_hu[0]
    if not may_move(moving):
        return None
    kept = strongest_slices(moving)
    return Scene(
        seen=seen[kept].round().short().numpy(),
        moving=moving[kept].round().short().numpy(),
        shift_px=true.shift_px.numpy(),
        start_rad=np.array([true.start_rad], dtype=np.float32),
    )


def draw_scenes(
    scenes: Sequence[Scene],
    *,
    num_slices: int,
    batch_size: int,
    seed: Sequence[int],
    radius_pixels: int,
) -> Batch:
    """Draw one batch of scenes, each seen with a motion that is a little wrong."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    chosen = [scenes[int(n)] for n in rng.integers(len(scenes), size=batch_size)]
    seen, moving, shift_px = (
        torch.from_numpy(np.stack([getattr(one, name) for one in chosen]).astype(np.float32))
        for name in ("seen", "moving", "shift_px")
    )
    start_rad = torch.from_numpy(np.concatenate([one.start_rad for one in chosen]))
    angles = phase.view_angles_rad(NUM_VIEWS, start_rad=start_rad)
    x_px, y_px = PLACE_PX * torch.randn(2, batch_size, 1, generator=generator)
    away_px = draw_errors(batch_size, generator) + x_px * angles.cos() + y_px * angles.sin()
    missing = [
        FoundMotion(away, float(start)).shift_at(centres_rad())
        for away, start in zip(away_px, start_rad, strict=True)
    ]
    fine = torch.stack([detail(one) for one in seen])
    views, block = look_apart(fine, moving.clamp(*MOVING_HU), shift_px - away_px, start_rad)
    middle = seen[:, len(seen[0]) // 2, None]
    nothing = torch.zeros_like(middle, dtype=torch.bool)
    return Batch(
        still=middle,
        moving=middle,
        calcium=nothing,
        lesions=nothing.int(),
        spacing_mm=torch.ones(batch_size, 3),
        views=views,
        block=block,
        missing=torch.stack(missing),
    )
