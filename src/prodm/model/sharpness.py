"""How sharp a motion leaves what moves in one block: what a search goes by.

A lesion is small and bright, and a motion undone wrongly leaves streaks and holes. So the image
with the motion undone should have a high peak and few dips (``lack_of_peak``); rest costs -1, and
what costs less is sharper than that.

Most motions need no more than a look: at half the resolution (``Seen.coarser``) that takes a
quarter of the time, and the sharpest ones are nearly the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from prodm.model.families import AMPLITUDE_RANGE_PX, PIECEWISE, Motions
from prodm.model.motions import FoundMotion, lack_of_peak, padding_for
from prodm.model.reading import NUM_ANGLES, without_translation
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

LEAST_DIPS = 0.025  # share of the energy; 96 % of moving and half of all still calcium have more
OUTSIDE_PRICE = 0.02  # for each pixel of amplitude beyond those that the simulator draws
AWAY_PRICE = 0.2  # for each pixel that s, without its translation, is from what was read
PADDING = 20
COARSE_PX = 2  # pixels of a coarse image, of the block's
MOST_SLICES = 6
FLAT_SLICES = 3
BORDER_PX = 4
FAINT_HU = 10.0
FAINT_SHARE = 0.02  # of the energy of the strongest slice
AT_ONCE = 50


@dataclass(frozen=True, eq=False)
class Seen:
    """What moves in one block, and what a reader saw of it."""

    image: Tensor  # [Z, Y, X], the box around what moves
    sharpness: float  # at rest, as ``lack_of_peak`` has it
    shape: Tensor | None  # s without its translation, where it was read
    pixel_px: int = 1  # of the image, in pixels of the block

    @classmethod
    def of(cls, moving: Tensor, path: Tensor | None) -> "Seen":
        """Return what moves [Z, Y, X], with the path that a reader saw in it."""
        image = moving[_box(moving)]
        shape = None if path is None else without_translation(path[0])
        return cls(image, _sharpness(image), shape)

    def coarser(self) -> "Seen":
        """Return the same in an image of larger pixels."""
        height, width = self.image.shape[-2:]
        whole = functional.pad(self.image[None], (0, -width % COARSE_PX, 0, -height % COARSE_PX))
        image = functional.avg_pool2d(whole, COARSE_PX)[0]
        return replace(self, image=image, sharpness=_sharpness(image), pixel_px=COARSE_PX)

    def flat(self) -> "Seen":
        """Return the same in the strongest slices alone."""
        energy = (self.image**2).sum(dim=(1, 2))
        image = self.image[energy.argsort(descending=True)[:FLAT_SLICES]]
        return replace(self, image=image, sharpness=_sharpness(image))

    @property
    def padding(self) -> int:
        """Pixels of the image that it is padded by."""
        return padding_for(self.image, PADDING) // self.pixel_px

    def away_price(self, shape: Tensor) -> Tensor:
        """Return the price of shapes [..., N] that are far from what was read."""
        if self.shape is None:
            return torch.zeros(shape.shape[:-1])
        return AWAY_PRICE * (shape - self.shape).square().mean(dim=-1).sqrt()

    @property
    def rest_cost(self) -> float:
        """What it costs to rest; to rest and to be read so costs -1."""
        return -1.0 + float(self.away_price(torch.zeros(NUM_ANGLES)))

    def cost_in(self, first: Motions) -> Callable[[Motions], Tensor]:
        """Return what motions [N] cost here, as a function of them.

        They start their scans where the first ones do; what depends on that is worked out once.
        """
        start_rad = starts(first)
        undone = phase.refocuser(self.image, NUM_VIEWS, start_rad=start_rad, padding=self.padding)

        def cost(now: Motions) -> Tensor:
            displacement = now.displacement()
            shift = now.shift(displacement) / self.pixel_px
            lack = lack_of_peak(undone(shift, displacement[..., 2]))
            return lack / self.sharpness + outside_price(now, displacement)

        return cost

    def costs(self, motions: Motions) -> Tensor:
        """Return what motions cost here, [N]; rest costs -1."""
        return self._a_few_at_once(motions, lambda part: self.cost_in(part)(part))

    def flat_costs(self, motions: Motions) -> Tensor:
        """Return how far each motion is from a sharp image, within the strongest slices alone."""
        flat = self.flat()

        def cost(part: Motions) -> Tensor:
            turn = phase.turner(flat.image, NUM_VIEWS, start_rad=starts(part), padding=flat.padding)
            shift = part.shift(part.displacement()) / flat.pixel_px
            return lack_of_peak(turn(-shift, None)) / flat.sharpness

        return self._a_few_at_once(motions, cost)

    def _a_few_at_once(self, motions: Motions, cost: Callable[[Motions], Tensor]) -> Tensor:
        with torch.no_grad():
            parts = [
                cost(motions[slice(first, first + AT_ONCE)])
                for first in range(0, len(motions.family), AT_ONCE)
            ]
        return torch.cat(parts)


def sharpness_cost(moving: Tensor, motion: FoundMotion) -> float:
    """Return how far from sharp a motion leaves what moves [Z, Y, X]; rest costs -1.

    There is no price on the motion, which may have been found elsewhere.
    """
    seen = Seen.of(moving, None)
    undone = phase.refocuser(
        seen.image, NUM_VIEWS, start_rad=motion.start_rad, padding=seen.padding
    )
    along_z = torch.zeros(NUM_VIEWS) if motion.slice_shift is None else motion.slice_shift
    with torch.no_grad():
        return float(lack_of_peak(undone(motion.shift_px[None], along_z[None]))[0]) / seen.sharpness


def dips(moving: Tensor) -> float:
    """Return the share of the energy of what moves that is negative.

    Motion leaves dark streaks beside the bright ones. What has none rests, be it calcium or bone
    that was taken for it, however sharp some motion may make it.
    """
    return float((moving.clamp(max=0) ** 2).sum() / (moving**2).sum())


def outside_price(motions: Motions, displacement: Tensor) -> Tensor:
    """Return the price [N] of amplitudes beyond those that the simulator draws.

    The amplitude is how far displacements [N, M, 3] go, and in a piecewise motion how far each of
    its two moves goes: both together may go twice as far.
    """
    low, high = AMPLITUDE_RANGE_PX
    farthest = displacement[..., :2].norm(dim=-1).amax(dim=-1)
    moves = motions.vectors[:, :2, :2].norm(dim=-1)
    in_pieces = (motions.family == PIECEWISE)[:, None]
    amplitudes = torch.where(in_pieces, moves, farthest[:, None])
    beyond = (low - amplitudes).clamp(min=0) + (amplitudes - high).clamp(min=0)
    return OUTSIDE_PRICE * beyond.amax(dim=1)


def starts(motions: Motions) -> float | Tensor:
    """Return one start where all are the same, which is faster."""
    first = float(motions.start_rad[0])
    return first if bool((motions.start_rad == motions.start_rad[0]).all()) else motions.start_rad


def _sharpness(image: Tensor) -> float:
    return abs(float(lack_of_peak(image[None])[0]))


def _box(moving: Tensor) -> tuple[slice, slice, slice]:
    """Return the box around what moves, at most ``MOST_SLICES`` deep."""
    energy = (moving**2).sum(dim=(1, 2))
    held = torch.nonzero(energy > FAINT_SHARE * energy.max()).flatten()
    first, last = int(held[0]), int(held[-1]) + 1
    if last - first > MOST_SLICES:
        first = int(energy.unfold(0, MOST_SLICES, 1).sum(dim=1).argmax())
        last = first + MOST_SLICES
    visible = (moving[first:last].abs() > FAINT_HU).any(dim=0)
    spans = []
    for axis in (1, 0):
        used = torch.nonzero(visible.any(dim=axis)).flatten()
        low, high = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, visible.shape[1 - axis])
        spans.append(slice(max(0, low - BORDER_PX), high + BORDER_PX))
    return slice(first, last), spans[0], spans[1]
