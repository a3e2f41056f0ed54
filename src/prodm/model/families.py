"""The motions that the simulator knows, as differentiable functions of a few parameters.

The simulator's families (``prodm.motion``) have few parameters: one or two velocities, or up
to three harmonics. Here they are, N motions at a time:

    displacement(t) = v1 min(t / p1, 1) + v2 max((t - p2) / (1 - p2), 0)
                      + w1 sin(2 pi t + q) + w2 sin(4 pi t + q) + w3 sin(6 pi t + q)

A translation has v1 (p1 = 1), a piecewise motion v1 and v2, an oscillation w1, jitter all three w.
``draw_motions`` draws them as the simulator does, ``fit_motions`` fits them to a path that was read
off what moves (``prodm.model.reading``): given q, or p1 and p2, all else is linear, so these are
tried on a grid.

Unlike s(theta) alone, a family also says where the lesion rests: a drift starts there, an
oscillation swings about it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

Floats = NDArray[np.float64]

FAMILIES = ("translation", "oscillation", "piecewise", "jitter")
TRANSLATION, OSCILLATION, PIECEWISE, JITTER = range(4)
SHARES = np.array([6, 6, 6, 3]) / 21  # of the simulator's profiles
AMPLITUDE_RANGE_PX = (4.0, 15.0)
NUM_BANDS = 3  # small, medium, large
USES_VECTORS = torch.tensor([[1, 0, 0, 0, 0], [0, 0, 1, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]])
USES_PHASE = torch.tensor([0, 1, 0, 1])
USES_PAUSE = torch.tensor([0, 0, 1, 0])
ANY_START_SHARE = 0.5  # of unknown starts that are drawn anywhere; the others are at 0
NO_PAUSE = (1.0, 0.5)

NUM_PHASES = 18  # over half a turn, which with the signs of the vectors is all; of the grid
NUM_STARTS = 12
FIRST_MOVES = (0.2, 0.3, 0.4, 0.5)
PAUSES = tuple((end, end + dwell) for end in FIRST_MOVES for dwell in (0.1, 0.2, 0.3))
NUM_FITS = (1, 2, 2, 2)  # of each family that are kept
APART_RAD = 0.7  # between the phases of those
SLICE_PX = 1.5  # what a slice counts in a fit, in pixels
STIFFNESS = 0.05  # price of a pixel of amplitude, where the path leaves it open
OTHER_START = 0.5  # another start than 0 must leave less than this share of what 0 leaves


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
        return progress(time, self.phase_rad, self.pause) @ self.vectors

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


def progress(time: Tensor, phase_rad: Tensor, pause: Tensor) -> Tensor:
    """Return how far each of the five vectors of N motions is gone at times [T], [N, T, 5]."""
    first, second = pause[:, :1], pause[:, 1:]
    waves = [torch.sin(2 * math.pi * order * time + phase_rad[:, None]) for order in (1, 2, 3)]
    moves = [(time / first).clamp(max=1), ((time - second) / (1 - second)).clamp(min=0)]
    return torch.stack([*moves, *waves], dim=-1)


def joined(first: Motions, second: Motions) -> Motions:
    """Return the motions of both."""
    pairs = zip(vars(first).values(), vars(second).values(), strict=True)
    return Motions(*(torch.cat(pair) for pair in pairs))


def draw_motions(
    count: int,
    start_rad: float | None,
    generator: torch.Generator,
    shares: Sequence[float] | Floats = SHARES,
) -> Motions:
    """Draw motions as the simulator does, still without a z part.

    ``shares`` are those of the families.
    """
    rng = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
    family = rng.choice(len(FAMILIES), size=count, p=shares)
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
    pause[USES_PAUSE.numpy()[family] == 0] = NO_PAUSE
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


@dataclass(frozen=True, eq=False)
class _Grid:
    """Everything that does not depend on the path: one linear fit for each place of the grid."""

    vectors: tuple[int, ...]  # the ones that the family uses
    start_rad: Floats  # [G]
    phase_rad: Floats  # [G]
    pause: Floats  # [G, 2]
    seen: Floats  # [G, D, 3 K], from the K vectors to the path
    fit: Floats  # [G, 3 K, D], and back


def fit_motions(path: Tensor, start_rad: float | None) -> Motions:
    """Return the few motions of each family that are closest to a path [2, N].

    ``path`` is s in pixels and the displacement along z in slices at N angles over 180 degrees,
    from 0 on. ``start_rad`` None: the scan started at 0, or elsewhere where that fits much better.
    """
    scaled = path.double().numpy() * np.array([[1.0], [SLICE_PX]])
    found = [
        motion
        for family in range(len(FAMILIES))
        for motion in _best_fits(scaled.ravel(), family, path.shape[1], start_rad)
    ]
    columns = (torch.from_numpy(np.array(values)).float() for values in zip(*found, strict=True))
    family, vectors, phase_rad, pause, start = columns
    return Motions(family.long(), vectors, phase_rad, pause, start)


def _best_fits(
    path: Floats, family: int, num_angles: int, start_rad: float | None
) -> Iterator[tuple[int, Floats, float, Floats, float]]:
    starts = (0.0 if start_rad is None else start_rad,)
    if start_rad is None:
        starts = tuple(np.arange(NUM_STARTS) * (math.pi / NUM_STARTS))
    grid = _grid(family, num_angles, starts)
    values = grid.fit @ path
    away = path - np.einsum("gdk,gk->gd", grid.seen, values)
    left = (away**2).sum(axis=1) + STIFFNESS**2 * num_angles * (values**2).sum(axis=1)
    left = np.where(grid.start_rad == starts[0], left, left / OTHER_START)
    chosen: list[int] = []
    for g in np.argsort(left):
        turned = np.abs(grid.phase_rad[chosen] - grid.phase_rad[g])
        is_new = np.minimum(turned, math.pi - turned) > APART_RAD
        if USES_PAUSE[family]:
            is_new = (grid.pause[chosen] != grid.pause[g]).any(axis=1)
        if not np.all(is_new):
            continue
        chosen.append(int(g))
        vectors = np.zeros((5, 3))
        vectors[list(grid.vectors)] = values[g].reshape(-1, 3)
        yield family, vectors, grid.phase_rad[g], grid.pause[g], grid.start_rad[g]
        if len(chosen) == NUM_FITS[family]:
            return


@lru_cache(maxsize=32)
def _grid(family: int, num_angles: int, starts: tuple[float, ...]) -> _Grid:
    """Least squares of a family at each place of its grid, all vectors a little stiff."""
    phases = np.arange(NUM_PHASES) * (math.pi / NUM_PHASES) if USES_PHASE[family] else [0.0]
    pauses = PAUSES if USES_PAUSE[family] else (NO_PAUSE,)
    places = [(s, q, p) for s in starts for q in phases for p in pauses]
    used = tuple(torch.nonzero(USES_VECTORS[family]).flatten().tolist())
    angles = np.arange(num_angles) * (math.pi / num_angles)
    seen = []
    for start, turn, (first, second) in places:
        time = ((angles - start) % math.pi) / math.pi
        moves = [np.minimum(time / first, 1), np.maximum((time - second) / (1 - second), 0)]
        waves = [np.sin(2 * np.pi * order * time + turn) for order in (1, 2, 3)]
        parts = np.array([*moves, *waves])[list(used)]
        columns = np.zeros((2, num_angles, len(used), 3))
        columns[0, ..., 0] = (parts * np.cos(angles)).T
        columns[0, ..., 1] = (parts * np.sin(angles)).T
        columns[1, ..., 2] = SLICE_PX * parts.T
        seen.append(columns.reshape(2 * num_angles, -1))
    design = np.array(seen)
    back = design.transpose(0, 2, 1)
    stiff = STIFFNESS**2 * num_angles * np.eye(design.shape[-1])
    fit = np.linalg.solve(back @ design + stiff, back).astype(np.float64)
    start_rad, phase_rad, pause = (np.array(column) for column in zip(*places, strict=True))
    return _Grid(used, start_rad, phase_rad, pause, design, fit)
