"""Find a motion among those that the simulator knows (``prodm.model.families``), z included.

Thousands of candidates are drawn at random and looked at in a coarse image. Of those that make it
sharpest a few dozen are kept, none of which is like another, since what is sharpest where calcium
was separated badly is often not the true motion, and has many neighbours. Others are fitted to
a path that a trained reader saw in what moves (``prodm.model.reading``). All are improved by
gradient, in the coarse image first, where they are felt from afar, and the best of them in full.

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
    FAMILIES,
    USES_PAUSE,
    USES_PHASE,
    USES_VECTORS,
    Motions,
    draw_motions,
    fit_motions,
    joined,
)
from prodm.model.motions import FoundMotion, views_at
from prodm.model.reading import angles_rad, without_translation
from prodm.model.sharpness import LEAST_DIPS, Seen, dips, outside_price, starts
from prodm.physics.fitting import NUM_VIEWS

DRAWN_SHARES = (0.06, 0.1, 0.42, 0.42)  # of the families: those with more freedom need more draws
PRICE = torch.tensor([0.0, 0.03, 0.12, 0.12])  # of a family's freedom, as a share of the peak
LEAK = 0.1  # of what a motion costs more than rest does; the block then counts as resting
FAMILY_SHARE = 1 / 3  # of those that are tried at most
# Root mean square of s by which motions that are kept are apart, by their family: a drift changes
# the shape of s by a tenth of its length only.
TRIED_APART_PX = (0.3, 0.8, 1.0, 1.0)
SHARPENED_APART_PX = (0.3, 0.5, 0.5, 0.5)
KEPT_APART_PX = (0.4, 0.4, 0.4, 0.4)
NUM_CLEAREST = 4  # motions that are improved besides the likeliest, at most
CLEARER_HU = 1200.0  # what the clearest motion gains more than the likeliest, and counts as much
OTHER_SHAPE_PX = 0.9  # root mean square, of s; motions farther apart are not averaged
MOVES_HU = 6000.0  # where images are so much smoother without it, what moves does not rest


@dataclass(frozen=True)
class SearchSettings:
    """How hard to look."""

    num_draws: int = 7000
    num_tried: int = 60  # of these that are improved in a coarse image
    num_sharpened: int = 20  # and in full
    num_kept: int = 8
    num_coarse_steps: int = 12
    num_steps: tuple[int, int] = (8, 20)  # of these, and of those that are kept
    step_px: float = 0.5
    num_clearing_steps: tuple[int, int] = (4, 8)  # of a few motions, and of the best of them
    start_rad: float | None = None  # where the scan starts; None where it is not known
    least_dips: float = LEAST_DIPS  # of what may have moved at all

    def __post_init__(self) -> None:
        numbers = (self.num_draws, self.num_tried, self.num_sharpened, self.num_kept)
        if min(*numbers, self.num_coarse_steps, *self.num_steps) < 1:
            raise ProdmError(f"a search needs at least one draw, one kept and one step, got {self}")


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
    seen = [Seen.of(blocks[n], path) for n in telling]
    weights = torch.tensor([one.sharpness for one in seen])
    weights = weights / weights.sum()

    def together(costs: Sequence[Tensor]) -> Tensor:
        return _together(torch.stack([*costs]), -torch.ones(len(seen)), weights)

    coarse = [one.coarser() for one in seen]
    motions = draw_motions(settings.num_draws, settings.start_rad, generator, DRAWN_SHARES)
    costs = together([one.flat_costs(motions) for one in coarse])
    most_of_family = math.ceil(FAMILY_SHARE * settings.num_tried)
    motions = unlike(motions, costs, TRIED_APART_PX, settings.num_tried, most_of_family)
    for read in own_paths if path is None else (path, *own_paths):
        motions = joined(fit_motions(read, settings.start_rad), motions)
    costs_in = [one.cost_in(motions) for one in coarse]
    motions = _improve(
        costs_in, -1.0, weights, motions, settings.step_px, settings.num_coarse_steps
    )
    costs = together([one.costs(motions) for one in seen])
    motions = unlike(motions, costs, SHARPENED_APART_PX, settings.num_sharpened)
    for num_steps in settings.num_steps:
        costs_in = [one.cost_in(motions) for one in seen]
        motions = _improve(costs_in, -1.0, weights, motions, settings.step_px, num_steps)
        costs = together([one.costs(motions) for one in seen]) + PRICE[motions.family]
        motions = unlike(motions, costs, KEPT_APART_PX, settings.num_kept)
    found = _found(seen, weights, motions)
    rest = replace(rest, cost=float(weights @ torch.tensor([one.rest_cost for one in seen])))
    if images is not None:
        scenes = [Scene.of(blocks[n], images[n]) for n in telling]
        clearest = _clearest(scenes, motions, found, settings)
        if gained_hu(scenes, clearest) >= MOVES_HU:
            clearest = replace(clearest, cost=min(clearest.cost, _below(rest.cost)))
        found.append(clearest)
    return sorted([rest, *found], key=lambda motion: motion.cost)


def unlike(
    motions: Motions,
    costs: Tensor,
    apart_px: Sequence[float],
    count: int,
    most_of_family: int | None = None,
) -> Motions:
    """Return the motions that cost least, none of which is nearly the shape of a cheaper one.

    The shape is s(theta) without its translation, and how far two of them are apart the root mean
    square of their difference; ``apart_px`` is how far a motion of each family must be from all
    that were kept before, and ``most_of_family`` how many of one are kept.
    """
    shapes = _shapes(motions)
    room = dict.fromkeys(range(len(FAMILIES)), count if most_of_family is None else most_of_family)
    kept: list[int] = []
    for n in costs.argsort().tolist():
        family = int(motions.family[n])
        if not room[family]:
            continue
        away = (shapes[kept] - shapes[n]).square().mean(dim=1).sqrt()
        if (away < apart_px[family]).any():
            continue
        kept.append(n)
        room[family] -= 1
        if len(kept) == count:
            break
    return motions[kept]


def _shapes(motions: Motions) -> Tensor:
    """Return s [N, angles] of motions without its translation."""
    with torch.no_grad():
        shift = motions.shift(motions.displacement())
    views, turns = views_at(angles_rad(), motions.start_rad[:, None])
    seen = shift.gather(1, views) * torch.where(turns % 2 == 0, 1.0, -1.0)
    return without_translation(seen)


def _together(costs: Tensor, rest: Tensor, weights: Tensor) -> Tensor:
    """Return what N motions cost, from what they cost in each block [B, N].

    A block may rest instead. What it would cost more to move counts a little all the same, so that
    motions that no block goes along with can be told apart.
    """
    more = (costs - rest[:, None]).clamp(min=0)
    return weights @ (costs - (1 - LEAK) * more)


def _found(seen: Sequence[Seen], weights: Tensor, motions: Motions) -> list[FoundMotion]:
    """Return motions with what they cost, their distance from what was read included."""
    with torch.no_grad():
        displacement = motions.displacement()
        shift = motions.shift(displacement)
    found = [
        FoundMotion(shift[n], float(start_rad), displacement[n, :, 2])
        for n, start_rad in enumerate(motions.start_rad)
    ]
    shapes = _shapes(motions)
    away = torch.stack([one.away_price(shapes) for one in seen])
    costs = torch.stack([one.costs(motions) for one in seen]) + PRICE[motions.family] + away
    costs = _together(costs, torch.tensor([one.rest_cost for one in seen]), weights)
    return [replace(one, cost=float(cost)) for one, cost in zip(found, costs, strict=True)]


def _clearest(
    scenes: Sequence[Scene],
    motions: Motions,
    found: Sequence[FoundMotion],
    settings: SearchSettings,
) -> FoundMotion:
    """Return the likeliest motion together with one that leaves the smoothest images behind.

    The latter is the best of the likeliest one and those that leave the smoothest images, once
    these were improved by gradient. Their errors have little in common, so that a mean of the two
    is nearer to the truth, to the clearest one the more it gains. But where they are two
    motions of different shapes, one is wrong, and the mean would be: then the clearest is taken if
    it gains enough. What is returned costs least.
    """
    weights = torch.tensor([scene.strength for scene in scenes])
    weights = weights / weights.sum()

    def costs_in(scene: Scene) -> Callable[[Motions], Tensor]:
        def cost(now: Motions) -> Tensor:
            displacement = now.displacement()
            left = scene.left(now.shift(displacement), displacement[..., 2], starts(now))
            return left + outside_price(now, displacement)

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
    more_hu = max(0.0, gained_hu(scenes, clearest) - gained_hu(scenes, likeliest))
    share = more_hu / (more_hu + CLEARER_HU)
    shapes = [without_translation(one.shift_at(angles_rad())) for one in (clearest, likeliest)]
    if float((shapes[0] - shapes[1]).square().mean().sqrt()) > OTHER_SHAPE_PX:
        share = float(share > 0.5)
    return replace(clearest.mean(likeliest, share), cost=_below(likeliest.cost))


def gained_hu(scenes: Sequence[Scene], motion: FoundMotion) -> float:
    """Return by how much images are smoother without what moves in them, all together."""
    along_z = torch.zeros(NUM_VIEWS) if motion.slice_shift is None else motion.slice_shift
    with torch.no_grad():
        left = [
            float(scene.left(motion.shift_px[None], along_z[None], motion.start_rad))
            for scene in scenes
        ]
    return sum(max(0.0, -share) * scene.strength for share, scene in zip(left, scenes, strict=True))


def _below(cost: float) -> float:
    return math.nextafter(cost, -math.inf)


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
