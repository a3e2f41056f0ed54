"""Find a motion among those that the simulator knows (``prodm.model.families``), z included.

Candidates are drawn at random, and those of each family that give the sharpest image within the
slices are kept. Others are fitted to a path that a trained reader saw in what moves
(``prodm.model.reading``). All are improved a little by gradient together with their z parts, the
best of each family some more.

Simple families are preferred where they do nearly as well, since the richer ones can imitate them
from another place, and so is what is near to what was read: what sharpens an image most may be
chance where it was separated badly.

Calcium that moves alike is better searched together: the errors of its separations differ, and the
motion that makes all of it sharp is the true one. ``search_together`` takes several blocks. What is
taken to move in one of them may in truth rest, so that each block counts with the motion or
with rest, whichever costs less there; dense calcium counts most.

Where the images are given in which it moves, the likeliest motions are judged once more, and
improved, by how smooth an image they leave behind (``prodm.model.clearing``). Whether anything
moves at all is told before that.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model.clearing import Scene
from prodm.model.families import (
    AMPLITUDE_RANGE_PX,
    FAMILIES,
    PIECEWISE,
    USES_PAUSE,
    USES_PHASE,
    USES_VECTORS,
    Motions,
    draw_motions,
    fit_motions,
    joined,
)
from prodm.model.motions import FoundMotion, lack_of_peak, padding_for
from prodm.model.reading import NUM_ANGLES, angles_rad, without_translation
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

PRICE = torch.tensor([0.0, 0.03, 0.12, 0.12])  # of a family's freedom, as a share of the peak
LEAST_DIPS = 0.025  # share of the energy; 96 % of moving and half of all still calcium have more
OUTSIDE_PRICE = 0.02  # for each pixel of amplitude beyond those that the simulator draws
AWAY_PRICE = 0.2  # for each pixel that s, without its translation, is from what was read
LEAK = 0.1  # of what a motion costs more than rest does; the block then counts as resting
PADDING = 20
MOST_SLICES = 6
FLAT_SLICES = 3
BORDER_PX = 4
FAINT_HU = 10.0
FAINT_SHARE = 0.02  # of the energy of the strongest slice
AT_ONCE = 50
NUM_CLEAREST = 3  # motions that are improved besides the likeliest, at most


@dataclass(frozen=True)
class SearchSettings:
    """How hard to look."""

    num_draws: int = 600
    kept_per_family: int = 3
    num_first_steps: int = 10
    num_steps: int = 20
    step_px: float = 0.3
    num_clearing_steps: tuple[int, int] = (4, 8)  # of a few motions, and of the best of them
    start_rad: float | None = None  # where the scan starts; None where it is not known
    least_dips: float = LEAST_DIPS  # of what may have moved at all

    def __post_init__(self) -> None:
        if min(self.num_draws, self.kept_per_family, self.num_first_steps, self.num_steps) < 1:
            raise ProdmError(f"a search needs at least one draw, one kept and one step, got {self}")


@dataclass(frozen=True, eq=False)
class _Seen:
    """What moves in one block, and what a reader saw of it."""

    image: Tensor  # [Z, Y, X], the box around what moves
    sharpness: float  # at rest, as ``lack_of_peak`` has it
    shape: Tensor | None  # s without its translation, where it was read

    @classmethod
    def of(cls, moving: Tensor, path: Tensor | None) -> "_Seen":
        image = moving[_box(moving)]
        shape = None if path is None else without_translation(path[0])
        return cls(image, abs(float(lack_of_peak(image[None])[0])), shape)

    def away_price(self, shape: Tensor) -> Tensor:
        """Return the price of shapes [..., N] that are far from what was read."""
        if self.shape is None:
            return torch.zeros(shape.shape[:-1])
        return AWAY_PRICE * (shape - self.shape).square().mean(dim=-1).sqrt()

    @property
    def rest_cost(self) -> float:
        """What it costs to rest; to rest and to be read so costs -1."""
        return -1.0 + float(self.away_price(torch.zeros(NUM_ANGLES)))


def search(
    moving: Tensor,
    settings: SearchSettings,
    generator: torch.Generator,
    path: Tensor | None = None,
) -> list[FoundMotion]:
    """Return the motions that may have moved what moves [Z, Y, X], the likeliest first.

    Rest is among them. ``path`` is what a reader saw, where there is one.
    """
    return search_together([moving], settings, generator, path)


def search_together(
    blocks: Sequence[Tensor],
    settings: SearchSettings,
    generator: torch.Generator,
    path: Tensor | None = None,
    images: Sequence[Tensor] | None = None,
    own_paths: Sequence[Tensor] = (),
) -> list[FoundMotion]:
    """Return the motions that may have moved what moves in blocks [Z, Y, X], the likeliest first.

    Rest is among them. ``path`` is what a reader saw in all of them, where there is one,
    ``images`` are the blocks themselves, and ``own_paths`` what a reader saw in each: where most
    are read badly, one may still be a better start than their mean.
    """
    start_rad = 0.0 if settings.start_rad is None else settings.start_rad
    rest = FoundMotion(torch.zeros(NUM_VIEWS), start_rad, cost=-1.0)
    telling = [
        n for n, block in enumerate(blocks) if block.any() and dips(block) >= settings.least_dips
    ]
    if not telling:
        return [rest]
    seen = [_Seen.of(blocks[n], path) for n in telling]
    weights = torch.tensor([one.sharpness for one in seen])
    weights = weights / weights.sum()
    still = -torch.ones(len(seen))
    motions = draw_motions(settings.num_draws, settings.start_rad, generator)
    costs = torch.stack([_flat_costs(one.image, motions) for one in seen])
    kept = settings.kept_per_family
    motions = _best_of_families(motions, _together(costs, still, weights), kept)
    for read in own_paths if path is None else (path, *own_paths):
        motions = joined(fit_motions(read, settings.start_rad), motions)
    if len(seen) > 1:  # of many candidates, most need no more than a look
        costs = _costs(seen, motions)
        motions = _best_of_families(motions, _together(costs, still, weights), 2 * kept)
    motions = _sharpened(seen, weights, motions, settings.step_px, settings.num_first_steps)
    costs = _costs(seen, motions)
    motions = _best_of_families(motions, _together(costs, still, weights), kept)
    motions = _sharpened(seen, weights, motions, settings.step_px, settings.num_steps)
    found = _found(seen, weights, motions)
    rest = replace(rest, cost=float(weights @ torch.tensor([one.rest_cost for one in seen])))
    if images is not None:
        scenes = [Scene.of(blocks[n], images[n]) for n in telling]
        found.append(_clearest(scenes, motions, found, settings))
    return sorted([rest, *found], key=lambda motion: motion.cost)


def sharpness_cost(moving: Tensor, motion: FoundMotion) -> float:
    """Return how far from sharp a motion leaves what moves [Z, Y, X]; rest costs -1.

    There is no price on the motion, which may have been found elsewhere.
    """
    seen = _Seen.of(moving, None)
    undone = phase.refocuser(
        seen.image, NUM_VIEWS, start_rad=motion.start_rad, padding=padding_for(seen.image, PADDING)
    )
    along_z = torch.zeros(NUM_VIEWS) if motion.slice_shift is None else motion.slice_shift
    with torch.no_grad():
        return float(lack_of_peak(undone(motion.shift_px[None], along_z[None]))[0]) / seen.sharpness


def _together(costs: Tensor, rest: Tensor, weights: Tensor) -> Tensor:
    """Return what N motions cost, from what they cost in each block [B, N].

    A block may rest instead. What it would cost more to move counts a little all the same, so that
    motions that no block goes along with can be told apart.
    """
    more = (costs - rest[:, None]).clamp(min=0)
    return weights @ (costs - (1 - LEAK) * more)


def _found(seen: Sequence[_Seen], weights: Tensor, motions: Motions) -> list[FoundMotion]:
    """Return motions with what they cost, their distance from what was read included."""
    with torch.no_grad():
        displacement = motions.displacement()
        shift = motions.shift(displacement)
    found = [
        FoundMotion(shift[n], float(start_rad), displacement[n, :, 2])
        for n, start_rad in enumerate(motions.start_rad)
    ]
    shapes = torch.stack([without_translation(one.shift_at(angles_rad())) for one in found])
    away = torch.stack([one.away_price(shapes) for one in seen])
    costs = _costs(seen, motions) + PRICE[motions.family] + away
    costs = _together(costs, torch.tensor([one.rest_cost for one in seen]), weights)
    return [replace(one, cost=float(cost)) for one, cost in zip(found, costs, strict=True)]


def dips(moving: Tensor) -> float:
    """Return the share of the energy of what moves that is negative.

    Motion leaves dark streaks beside the bright ones. What has none rests, be it calcium or bone
    that was taken for it, however sharp some motion may make it.
    """
    return float((moving.clamp(max=0) ** 2).sum() / (moving**2).sum())


def _flat_costs(image: Tensor, motions: Motions) -> Tensor:
    """Return how far each motion is from a sharp image, within the strongest slices alone."""
    energy = (image**2).sum(dim=(1, 2))
    flat = image[energy.argsort(descending=True)[:FLAT_SLICES]]
    costs = []
    with torch.no_grad():
        for first in range(0, len(motions.family), AT_ONCE):
            part = motions[slice(first, first + AT_ONCE)]
            turn = phase.turner(
                flat, NUM_VIEWS, start_rad=_starts(part), padding=padding_for(flat, PADDING)
            )
            costs.append(lack_of_peak(turn(-part.shift(part.displacement()), None)))
    return torch.cat(costs) / abs(float(lack_of_peak(flat[None])[0]))


def _best_of_families(motions: Motions, costs: Tensor, count: int) -> Motions:
    """Return the few motions of each family that cost least."""
    kept: list[int] = []
    for family in range(len(FAMILIES)):
        members = torch.nonzero(motions.family == family).flatten()
        kept += members[costs[members].argsort()[:count]].tolist()
    return motions[kept]


def _sharpened(
    seen: Sequence[_Seen], weights: Tensor, motions: Motions, step_px: float, num_steps: int
) -> Motions:
    """Sharpen the images by gradient."""
    costs_in = [_cost_in(one, motions) for one in seen]
    return _improve(costs_in, -1.0, weights, motions, step_px, num_steps)


def _clearest(
    scenes: Sequence[Scene],
    motions: Motions,
    found: Sequence[FoundMotion],
    settings: SearchSettings,
) -> FoundMotion:
    """Return the mean of the likeliest motion and of one that leaves the smoothest images behind.

    Their errors have little in common. The latter is the best of the likeliest one and those that
    leave the smoothest images, once these were improved by gradient. The mean is likeliest.
    """
    weights = torch.tensor([scene.strength for scene in scenes])
    weights = weights / weights.sum()

    def costs_in(scene: Scene) -> Callable[[Motions], Tensor]:
        def cost(now: Motions) -> Tensor:
            displacement = now.displacement()
            left = scene.left(now.shift(displacement), displacement[..., 2], _starts(now))
            return left + _outside_price(now, displacement)

        return cost

    costs = [costs_in(scene) for scene in scenes]

    def together(now: Motions) -> Tensor:
        with torch.no_grad():
            left = torch.stack([cost(now) for cost in costs])
            return _together(left, torch.zeros(len(scenes)), weights)

    likeliest = min(found, key=lambda motion: motion.cost)
    chosen = {found.index(likeliest), *together(motions).argsort()[:NUM_CLEAREST].tolist()}
    motions = motions[sorted(chosen)]
    for num_steps in settings.num_clearing_steps:
        improved = _improve(costs, 0.0, weights, motions, settings.step_px, num_steps)
        motions = joined(motions, improved)
        motions = motions[[int(together(motions).argmin())]]
    displacement = motions.displacement()
    clearest = FoundMotion(
        motions.shift(displacement)[0], float(motions.start_rad[0]), displacement[0, :, 2]
    )
    return replace(clearest.mean(likeliest), cost=math.nextafter(likeliest.cost, -math.inf))


def _improve(
    costs_in: Sequence[Callable[[Motions], Tensor]],
    rest_cost: float,
    weights: Tensor,
    motions: Motions,
    step_px: float,
    num_steps: int,
) -> Motions:
    """Return motions that cost less in all blocks together, by gradient."""
    uses = [used[motions.family] for used in (USES_VECTORS, USES_PHASE, USES_PAUSE)]
    values = (motions.vectors, motions.phase_rad, motions.pause)
    scales = (torch.tensor([1.0, 1.0, 0.2]), torch.tensor(0.2), torch.tensor(0.03))
    freedom = [torch.zeros_like(value).requires_grad_() for value in values]
    optimiser = torch.optim.Adam(freedom, lr=step_px)

    def moved() -> Motions:
        vectors, phase_rad, pause = (
            value + change * scale * used.reshape(used.shape + (1,) * (value.ndim - used.ndim))
            for value, change, scale, used in zip(values, freedom, scales, uses, strict=True)
        )
        first = pause[:, 0].clamp(0.05, 1.0)
        second = torch.minimum(torch.maximum(pause[:, 1], first), torch.tensor(0.95))
        ends = torch.stack([first, second], dim=1)
        return Motions(motions.family, vectors, phase_rad, ends, motions.start_rad)

    for step in range(num_steps):
        optimiser.param_groups[0]["lr"] = step_px * (1 - step / num_steps)
        optimiser.zero_grad()
        for cost_in, weight in zip(costs_in, weights, strict=True):  # one after the other: memory
            with torch.enable_grad():
                cost = cost_in(moved())[None]
                cost = _together(cost, torch.tensor([rest_cost]), weight[None]).sum()
            for value, gradient in zip(freedom, torch.autograd.grad(cost, freedom), strict=True):
                value.grad = gradient if value.grad is None else value.grad + gradient
        optimiser.step()
    with torch.no_grad():
        return moved()


def _costs(seen: Sequence[_Seen], motions: Motions) -> Tensor:
    """Return what motions cost in each block [B, N], rest costing -1."""
    with torch.no_grad():
        return torch.stack([_cost_in(one, motions)(motions) for one in seen])


def _cost_in(seen: _Seen, first: Motions) -> Callable[[Motions], Tensor]:
    """Return what motions [N] cost in one block, as a function of them.

    They start their scans where the first ones do; what depends on that is worked out once.
    """
    undone = phase.refocuser(
        seen.image, NUM_VIEWS, start_rad=_starts(first), padding=padding_for(seen.image, PADDING)
    )

    def cost(now: Motions) -> Tensor:
        displacement = now.displacement()
        lack = lack_of_peak(undone(now.shift(displacement), displacement[..., 2]))
        return lack / seen.sharpness + _outside_price(now, displacement)

    return cost


def _outside_price(motions: Motions, displacement: Tensor) -> Tensor:
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


def _starts(motions: Motions) -> float | Tensor:
    """Return one start where all are the same, which is faster."""
    first = float(motions.start_rad[0])
    return first if bool((motions.start_rad == motions.start_rad[0]).all()) else motions.start_rad


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
