"""Find a motion among those that the simulator knows (``prodm.model.families``), z included.

Candidates are drawn at random, and those of each family that give the sharpest image within the
slices are kept. Others are fitted to a path that a trained reader saw in what moves
(``prodm.model.reading``). All are improved a little by gradient together with their z parts, the
best of each family some more.

Simple families are preferred where they do nearly as well, since the richer ones can imitate them
from another place, and so is what is near to what was read: what sharpens an image most may be
chance where it was separated badly.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model.families import (
    AMPLITUDE_RANGE_PX,
    FAMILIES,
    USES_PAUSE,
    USES_PHASE,
    USES_VECTORS,
    Motions,
    draw_motions,
    fit_motions,
    joined,
)
from prodm.model.motions import FoundMotion, lack_of_peak
from prodm.model.reading import angles_rad, without_translation
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

PRICE = torch.tensor([0.0, 0.03, 0.12, 0.12])  # of a family's freedom, as a share of the peak
LEAST_DIPS = 0.025  # share of the energy; 96 % of moving and half of all still calcium have more
OUTSIDE_PRICE = 0.02  # for each pixel of amplitude beyond those that the simulator draws
AWAY_PRICE = 0.2  # for each pixel that s, without its translation, is from what was read
PADDING = 20
MOST_SLICES = 6
FLAT_SLICES = 3
BORDER_PX = 4
FAINT_HU = 10.0
FAINT_SHARE = 0.02  # of the energy of the strongest slice
AT_ONCE = 50


@dataclass(frozen=True)
class SearchSettings:
    """How hard to look."""

    num_draws: int = 200
    kept_per_family: int = 2
    num_first_steps: int = 10
    num_steps: int = 20
    step_px: float = 0.3
    start_rad: float | None = None  # where the scan starts; None where it is not known
    least_dips: float = LEAST_DIPS  # of what may have moved at all

    def __post_init__(self) -> None:
        if min(self.num_draws, self.kept_per_family, self.num_first_steps, self.num_steps) < 1:
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
    start_rad = 0.0 if settings.start_rad is None else settings.start_rad
    rest = FoundMotion(torch.zeros(NUM_VIEWS), start_rad, cost=-1.0)
    if not moving.any() or dips(moving) < settings.least_dips:
        return [rest]
    seen = moving[_box(moving)]
    motions = draw_motions(settings.num_draws, settings.start_rad, generator)
    motions = _best_of_families(motions, _flat_costs(seen, motions), settings.kept_per_family)
    if path is not None:
        motions = joined(fit_motions(path, settings.start_rad), motions)
    motions, costs = _improve(seen, motions, settings.step_px, settings.num_first_steps)
    motions = _best_of_families(motions, costs, settings.kept_per_family)
    motions, costs = _improve(seen, motions, settings.step_px, settings.num_steps)
    found = _found(motions, costs, path)
    if path is not None:
        rest = replace(rest, cost=rest.cost + _away_price(rest, path))
    return sorted([*found, rest], key=lambda motion: motion.cost)


def _found(motions: Motions, costs: Tensor, path: Tensor | None) -> list[FoundMotion]:
    """Return motions with what they cost, their distance from what was read included."""
    with torch.no_grad():
        displacement = motions.displacement()
        shift = motions.shift(displacement)
    found = [
        FoundMotion(shift[n], float(start_rad), displacement[n, :, 2], cost=float(costs[n]))
        for n, start_rad in enumerate(motions.start_rad)
    ]
    if path is None:
        return found
    return [replace(one, cost=one.cost + _away_price(one, path)) for one in found]


def _away_price(motion: FoundMotion, path: Tensor) -> float:
    """Return the price of a motion that is far from what was read, whatever its place."""
    away = without_translation(motion.shift_at(angles_rad()) - path[0])
    return AWAY_PRICE * float(away.square().mean().sqrt())


def dips(moving: Tensor) -> float:
    """Return the share of the energy of what moves that is negative.

    Motion leaves dark streaks beside the bright ones. What has none rests, be it calcium or bone
    that was taken for it, however sharp some motion may make it.
    """
    return float((moving.clamp(max=0) ** 2).sum() / (moving**2).sum())


def _flat_costs(seen: Tensor, motions: Motions) -> Tensor:
    """Return how far each motion is from a sharp image, within the strongest slices alone."""
    energy = (seen**2).sum(dim=(1, 2))
    flat = seen[energy.argsort(descending=True)[:FLAT_SLICES]]
    costs = []
    with torch.no_grad():
        for first in range(0, len(motions.family), AT_ONCE):
            part = motions[slice(first, first + AT_ONCE)]
            turn = phase.turner(flat, NUM_VIEWS, start_rad=_starts(part), padding=PADDING)
            costs.append(lack_of_peak(turn(-part.shift(part.displacement()), None)))
    return torch.cat(costs)


def _best_of_families(motions: Motions, costs: Tensor, count: int) -> Motions:
    """Return the few motions of each family that cost least."""
    kept: list[int] = []
    for family in range(len(FAMILIES)):
        members = torch.nonzero(motions.family == family).flatten()
        kept += members[costs[members].argsort()[:count]].tolist()
    return motions[kept]


def _improve(
    seen: Tensor, motions: Motions, step_px: float, num_steps: int
) -> tuple[Motions, Tensor]:
    """Sharpen the image by gradient; return the motions and their costs, rest costing -1."""
    undone = phase.refocuser(seen, NUM_VIEWS, start_rad=_starts(motions), padding=PADDING)
    still = torch.zeros(len(motions.family), NUM_VIEWS)
    with torch.no_grad():
        at_rest = float(lack_of_peak(undone(still, still))[0])
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

    def cost(now: Motions) -> Tensor:
        displacement = now.displacement()
        lack = lack_of_peak(undone(now.shift(displacement), displacement[..., 2]))
        low, high = AMPLITUDE_RANGE_PX
        farthest: Tensor = displacement[..., :2].norm(dim=-1).amax(dim=-1)
        outside = (low - farthest).clamp(min=0) + (farthest - high).clamp(min=0)
        return lack / abs(at_rest) + OUTSIDE_PRICE * outside

    for step in range(num_steps):
        optimiser.param_groups[0]["lr"] = step_px * (1 - step / num_steps)
        with torch.enable_grad():
            total = cost(moved()).sum()
        for value, gradient in zip(freedom, torch.autograd.grad(total, freedom), strict=True):
            value.grad = gradient
        optimiser.step()
    with torch.no_grad():
        now = moved()
        return now, cost(now) + PRICE[now.family]


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
