"""Fit a motion again, once lesions were seen in focus.

A focuser knows what calcium looks like, and its lesions are sharper than what was refocused of a
separator's. So the motion that makes them look as they are seen is nearer to the true one: the one
that leaves the smoothest images behind once they are taken away as they moved
(``prodm.model.clearing``),

    rough(y - move(x + dx))      x, the lesion that a focuser saw

over all blocks that share the motion. The lesion was seen through the motion that is to be fitted,
and has grown to suit it: were it kept as it is, the motion would hardly move. So it may change by
dx, which has a price, and is forgotten afterwards. What is changed is s(theta) by a few smooth
waves, none of them a translation, which would only move the lesion. Changes along z are fitted
besides, so that errors there are not taken for some of s, and are left out again: they are no
nearer to the truth.

One block fits its own grain, too. What comes out is no motion of the simulator; where tissue rests,
the mean of those that are likely takes its place (``prodm.model.likely``), which is nearer still,
and of most single blocks nearer than before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from prodm.model.clearing import roughness
from prodm.model.motions import FoundMotion, padding_for
from prodm.model.placing import LESION_HU
from prodm.model.polishing import likely_error
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

MOST_BLOCKS = 8  # whose lesions smooth their images most
NUM_WAVES = 10  # of s
NUM_WAVES_ALONG_Z = 4
ALONG_Z_SLICES = 0.3  # what a step of one pixel is along z
NUM_STEPS = 20
STEP_PX = 0.06
CHANGE_STEP = 0.15  # of a lesion, in standard deviations
CHANGE_PRICE_HU = 10.0  # of roughness, for a pixel that changes by a standard deviation
PADDING = 16

Seen = tuple[Tensor, Tensor]  # a block and the lesion at rest in it, [Z, Y, X]


def refit(motion: FoundMotion, blocks: Sequence[Seen]) -> FoundMotion:
    """Return the motion, fitted again to lesions that were seen in blocks, at the same place."""
    gained = [float(roughness(y) - roughness(y - motion.apply(x))) for y, x in blocks]
    order = sorted(range(len(blocks)), key=lambda n: -gained[n])[:MOST_BLOCKS]
    seen = [_Changeable.of(*_with_lesion(*blocks[n])) for n in order]
    scale = max(sum(gained[n] for n in order), 1.0)
    shapes, waves = _shapes(motion.start_rad), _waves(NUM_WAVES_ALONG_Z)
    along_z = torch.zeros(NUM_VIEWS) if motion.slice_shift is None else motion.slice_shift
    of_shift = torch.zeros(len(shapes), requires_grad=True)
    of_z = torch.zeros(len(waves), requires_grad=True)
    rates = (STEP_PX, CHANGE_STEP)
    freedom = ([of_shift, of_z], [one.change for one in seen])
    optimiser = torch.optim.Adam([{"params": part} for part in freedom])
    for step in range(NUM_STEPS):
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * (1 - step / NUM_STEPS)
        optimiser.zero_grad()
        with torch.enable_grad():
            for one in seen:  # one after the other: memory
                lesion = one.lesion()
                mover = phase.Mover(
                    lesion,
                    motion.shift_px + of_shift @ shapes,
                    slice_shift=along_z + ALONG_Z_SLICES * of_z @ waves,
                    start_rad=motion.start_rad,
                    padding=padding_for(lesion, PADDING),
                )
                cost = roughness(one.image - mover.apply(lesion)) + one.price()
                (cost / scale).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return replace(motion, shift_px=motion.shift_px + of_shift.detach() @ shapes)


@dataclass(frozen=True, eq=False)
class _Changeable:
    """A block, and the lesion that was seen in it, which may have been a little different."""

    image: Tensor  # [Z, Y, X]
    seen: Tensor
    deviation: Tensor
    change: Tensor  # in standard deviations

    @classmethod
    def of(cls, image: Tensor, seen: Tensor) -> "_Changeable":
        return cls(image, seen, likely_error(seen), torch.zeros_like(seen, requires_grad=True))

    def lesion(self) -> Tensor:
        return (self.seen + self.deviation * self.change).clamp(min=0)

    def price(self) -> Tensor:
        return CHANGE_PRICE_HU * self.change.square().sum()


def _with_lesion(block_hu: Tensor, lesion_hu: Tensor) -> Seen:
    """Return the slices that a lesion lies in, and those beside it."""
    held = torch.nonzero((lesion_hu > LESION_HU).any(dim=2).any(dim=1)).flatten()
    if not len(held):
        return block_hu, lesion_hu
    kept = slice(max(0, int(held[0]) - 1), int(held[-1]) + 2)
    return block_hu[kept], lesion_hu[kept]


def _waves(count: int) -> Tensor:
    """Return cosines over the scan [count, views], of root mean square 1."""
    time = torch.arange(NUM_VIEWS) / NUM_VIEWS
    waves = torch.cos(torch.pi * torch.arange(count)[:, None] * time)
    return waves / waves.square().mean(dim=1, keepdim=True).sqrt()


@lru_cache(maxsize=16)
def _shapes(start_rad: float) -> Tensor:
    """Return smooth changes of s without translation [N, views], of root mean square 1 each.

    None is made up of others.
    """
    angles = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS, start_rad=start_rad)).float()
    translations = torch.stack([angles.cos(), angles.sin()])
    waves = _waves(NUM_WAVES)
    waves = waves - waves @ torch.linalg.pinv(translations) @ translations
    _, sizes, shapes = torch.linalg.svd(waves, full_matrices=False)
    kept: Tensor = shapes[sizes > 1e-3 * sizes[0]] * NUM_VIEWS**0.5
    return kept
