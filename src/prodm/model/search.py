"""Find a motion among those that the simulator knows, its z part included.

The simulator's families (``prodm.motion``) have few parameters: one or two velocities, or up
to three harmonics. Here they are differentiable functions of them, N motions at a time:

    displacement(t) = v1 min(t / p1, 1) + v2 max((t - p2) / (1 - p2), 0)
                      + w1 sin(2 pi t + q) + w2 sin(4 pi t + q) + w3 sin(6 pi t + q)

A translation has v1 (p1 = 1), a piecewise motion v1 and v2, an oscillation w1, jitter all three w.
Motions are drawn as the simulator draws them. Those of each family that give the sharpest image
within the slices are kept, and improved by gradient together with their z parts: first a few,
then the best of each family.

Unlike s(theta) alone, a family also says where the lesion rests: a drift starts there, an
oscillation swings about it. Simple families are preferred where they do nearly as well, since
the richer ones can imitate them from another place.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model.motions import FoundMotion, lack_of_peak
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

FAMILIES = ("translation", "oscillation", "piecewise", "jitter")
SHARES = np.array([6, 6, 6, 3]) / 21  # of the simulator's profiles
AMPLITUDE_RANGE_PX = (4.0, 15.0)
NUM_BANDS = 3  # small, medium, large
JITTER = 3
USES_VECTORS = torch.tensor([[1, 0, 0, 0, 0], [0, 0, 1, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]])
USES_PHASE = torch.tensor([0, 1, 0, 1])
USES_PAUSE = torch.tensor([0, 0, 1, 0])
PRICE = torch.tensor([0.0, 0.03, 0.12, 0.12])  # of a family's freedom, as a share of the peak
ANY_START_SHARE = 0.5  # of unknown starts that are drawn anywhere; the others are at 0
OUTSIDE_PRICE = 0.02  # for each pixel of amplitude beyond those that the simulator draws
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
    num_steps: int = 15
    step_px: float = 0.3
    start_rad: float | None = None  # where the scan starts; None where it is not known

    def __post_init__(self) -> None:
        if min(self.num_draws, self.kept_per_family, self.num_first_steps, self.num_steps) < 1:
            raise ProdmError(f"a search needs at least one draw, one kept and one step, got {self}")


@dataclass(frozen=True, eq=False)
class Motions:
    """The parameters of N motions."""

    family: Tensor  # [N], index into ``FAMILIES``
    vectors: Tensor  # [N, 5, 3]: v1, v2, w1, w2, w3; x and y in pixels, z in slices
    phase_rad: Tensor  # [N]
    pause: Tensor  # [N, 2], its start and end in the time of the scan
    start_rad: Tensor  # [N]

    def displacement(self) -> Tensor:
        """Return [N, M, 3] at the views of the scan."""
        time = torch.arange(NUM_VIEWS) / NUM_VIEWS
        first, second = self.pause[:, :1], self.pause[:, 1:]
        waves = [
            torch.sin(2 * math.pi * order * time + self.phase_rad[:, None]) for order in (1, 2, 3)
        ]
        moves = [(time / first).clamp(max=1), ((time - second) / (1 - second)).clamp(min=0)]
        return torch.stack([*moves, *waves], dim=-1) @ self.vectors

    def shift(self, displacement: Tensor) -> Tensor:
        """Return s [N, M] of displacements [N, M, 3]."""
        angles = phase.view_angles_rad(NUM_VIEWS, start_rad=self.start_rad)
        shift: Tensor = phase.shift_of(displacement[..., :2], angles)
        return shift

    def __getitem__(self, chosen: list[int] | slice) -> "Motions":
        return Motions(
            self.family[chosen],
            self.vectors[chosen],
            self.phase_rad[chosen],
            self.pause[chosen],
            self.start_rad[chosen],
        )


def draw_motions(count: int, start_rad: float | None, generator: torch.Generator) -> Motions:
    """Draw motions as the simulator does, still without a z part."""
    rng = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
    family = rng.choice(len(FAMILIES), size=count, p=SHARES)
    low, high = AMPLITUDE_RANGE_PX
    band = rng.integers(NUM_BANDS, size=(count, 1))
    amplitude = low + (high - low) * (band + rng.random((count, 5))) / NUM_BANDS
    vectors = np.zeros((count, 5, 3))
    shakes = family == JITTER
    along_x = rng.random((count, 5)) < 0.5
    along_x[~shakes] = along_x[~shakes, :1]  # harmonics each have an axis, other motions share one
    vectors[..., :2] = _directions(rng, along_x)
    amplitude[shakes] = rng.uniform(0.5, 1, (np.count_nonzero(shakes), 5))  # of the harmonics
    vectors *= amplitude[..., None] * USES_VECTORS.numpy()[family][..., None]
    phase_rad = rng.uniform(0, 2 * np.pi, count)
    pause_start = rng.uniform(0.2, 0.5, count)
    pause = np.stack([pause_start, pause_start + rng.uniform(0.1, 0.3, count)], axis=1)
    pause[USES_PAUSE.numpy()[family] == 0] = 1.0, 0.5
    starts = np.full(count, 0.0 if start_rad is None else start_rad)
    if start_rad is None:
        any_start = rng.random(count) < ANY_START_SHARE
        starts[any_start] = rng.uniform(0, 2 * np.pi, np.count_nonzero(any_start))
    values = (vectors, phase_rad, pause, starts)
    drawn = Motions(torch.from_numpy(family), *(torch.from_numpy(v).float() for v in values))
    farthest = drawn.displacement().norm(dim=-1).amax(dim=-1).numpy()
    wanted = low + (high - low) * (band[:, 0] + rng.random(count)) / NUM_BANDS
    vectors[shakes] *= (wanted / farthest)[shakes, None, None]
    return replace(drawn, vectors=torch.from_numpy(vectors).float())


def _directions(rng: np.random.Generator, along_x: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Vectors [..., 2] mainly along x or along y, of unit length with the z part that is left."""
    shape = along_x.shape
    main, other, z = (
        low + (high - low) * rng.random(shape) for low, high in ((2, 4), (0.5, 1.5), (0.3, 1))
    )
    x, y = np.where(along_x, main, other), np.where(along_x, other, main)
    signs = rng.choice([-1.0, 1.0], (*shape, 2))
    directions: NDArray[np.float64] = (
        signs * np.stack([x, y], axis=-1) / np.sqrt(main**2 + other**2 + z**2)[..., None]
    )
    return directions


def search(
    moving: Tensor, settings: SearchSettings, generator: torch.Generator
) -> list[FoundMotion]:
    """Return the motions that may have moved what moves [Z, Y, X], the likeliest first.

    Rest is among them.
    """
    start_rad = 0.0 if settings.start_rad is None else settings.start_rad
    rest = FoundMotion(torch.zeros(NUM_VIEWS), start_rad, cost=-1.0)
    if not moving.any():
        return [rest]
    seen = moving[_box(moving)]
    drawn = draw_motions(settings.num_draws, settings.start_rad, generator)
    kept = _best_of_families(drawn, _flat_costs(seen, drawn), settings.kept_per_family)
    kept, costs = _improve(seen, kept, settings.step_px, settings.num_first_steps)
    kept = _best_of_families(kept, costs, 1)
    motions, costs = _improve(seen, kept, settings.step_px, settings.num_steps)
    with torch.no_grad():
        displacement = motions.displacement()
        shift = motions.shift(displacement)
    found = [
        FoundMotion(
            shift[n], float(motions.start_rad[n]), displacement[n, :, 2], cost=float(costs[n])
        )
        for n in costs.argsort().tolist()
    ]
    return sorted([*found, rest], key=lambda motion: motion.cost)


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
