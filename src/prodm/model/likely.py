"""Which motions of the simulator have a given shape, and where each of them rests.

The shape of a motion is s(theta) without its translation, all that shows of it in what moves
(``shapes``). Given its phase, or its pause, a motion is linear in its vectors
(``prodm.model.families``), so that on a grid of phases and pauses

    shape = X v + error           v ~ N(0, size^2), error ~ N(0, error_px^2)

is a linear model, whose evidence and whose likely v are known in closed form. Vectors are drawn
from the likeliest places of the grid, and count by how much likelier the simulator draws them than
N(0, size^2) does: their directions lie between the axes, and their lengths are bounded. That
leaves a few thousand motions with weights. A drift whose shape is known to a tenth of a pixel rests
in one place, known to a quarter of a pixel; an oscillation anywhere on a circle.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from prodm.model.families import (
    AMPLITUDE_RANGE_PX,
    FAMILIES,
    JITTER,
    NO_PAUSE,
    SHARES,
    USES_PAUSE,
    USES_PHASE,
    USES_VECTORS,
    progress,
)
from prodm.model.motions import FoundMotion
from prodm.model.reading import angles_rad
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

NUM_WEDGES = 10  # angles, in the middle of as many wedges, at which shapes are compared
SHAPE_ERROR_PX = 0.25  # of a motion that was found
SIZE_PX = (8.0, 8.0, 8.0, 5.0)  # of the vectors of each family
NUM_PHASES = 24  # over half a turn, which with the signs of the vectors is all
PAUSES = tuple((n / 20, n / 20 + m / 20) for n in range(4, 11) for m in range(2, 7))
NUM_LIKELIEST = 24  # places of the grid, of each family: all phases, which all oscillations share
NUM_DRAWS = 64  # of vectors at each of them
NUM_NORMALISED = 200_000  # draws that tell how often the simulator draws anything at all
MAIN_RATIO = (2.0, 4.0)  # in-plane parts of a direction, as the simulator draws them
OTHER_RATIO = (0.5, 1.5)
LEAST_RATIO, MOST_RATIO = 0.13, 0.735  # of the lesser in-plane part of a vector to the larger
RATIO_EDGE = (0.03, 0.05)  # beyond it, soft
LENGTH_EDGE_PX = (0.5, 0.5)  # a little is along z
JITTER_PX = (4.0, 26.0)  # sum of the three lengths
UNEVEN = 2.2  # largest over smallest length in jitter, about


@dataclass(frozen=True, eq=False)
class Likely:
    """N motions, and how likely they are."""

    place: Tensor  # [N, 2], translation (x, y) in pixels
    shift_px: Tensor  # [N, views], s of a scan that starts where it was said to
    evidence: Tensor  # [N], logarithms, also of motions from another start


@dataclass(frozen=True, eq=False)
class _Grid:
    """What the vectors of a family make at each of G places of its grid."""

    shape: Tensor  # [G, D, V]
    views: Tensor  # [G, views, V]
    place: Tensor  # [G, 2, V]


def likely_motions(
    motion: FoundMotion, start_rad: float, error_px: float = SHAPE_ERROR_PX
) -> Likely:
    """Return motions of a scan that starts at an angle, likely by the shape of one that was found.

    ``error_px`` is how wrong that may be, in each direction of the basis.
    """
    generator = torch.Generator().manual_seed(0)
    shape, precision = shape_of(motion), 1 / error_px**2
    places: list[Tensor] = []
    views: list[Tensor] = []
    evidences: list[Tensor] = []
    for family, size_px in enumerate(SIZE_PX):
        grid = _grid(family, start_rad)
        back = grid.shape.transpose(1, 2)
        inner = precision * back @ grid.shape + torch.eye(grid.shape.shape[2]) / size_px**2
        pull = precision * back @ shape
        mean = torch.linalg.solve(inner, pull[..., None])[..., 0]
        evidence = (pull * mean).sum(dim=1) / 2 - torch.logdet(inner * size_px**2) / 2
        best = evidence.topk(min(NUM_LIKELIEST, len(evidence))).indices
        drawn = torch.randn(len(best), inner.shape[1], NUM_DRAWS, generator=generator)
        drawn[..., 0] = 0  # the likeliest is among them
        root = torch.linalg.cholesky(inner[best]).transpose(1, 2)
        spread = torch.linalg.solve_triangular(root, drawn, upper=True).transpose(1, 2)
        vectors = mean[best][:, None] + spread
        evidences.append(
            (
                evidence[best][:, None]
                + math.log(SHARES[family] / len(evidence) / NUM_DRAWS)
                + _likelier(family, vectors)
                - _normaliser(family)
            ).flatten()
        )
        for made, of in ((places, grid.place), (views, grid.views)):
            made.append((vectors @ of[best].transpose(1, 2)).flatten(0, 1))
    return Likely(torch.cat(places), torch.cat(views), torch.cat(evidences))


def as_drawn(motion: FoundMotion, start_rad: float) -> FoundMotion:
    """Return the mean of all motions that are likely by the shape of one that was found.

    What a search finds is no motion of the simulator, once it was averaged or tuned.
    """
    likely = likely_motions(motion, start_rad)
    views = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS, start_rad=start_rad)).float()
    return replace(
        motion,
        shift_px=likely.evidence.softmax(dim=0) @ likely.shift_px,
        start_rad=start_rad,
        slice_shift=motion.along_z_at(views),
    )


def centres_rad() -> Tensor:
    """Return the angles in the middle of the wedges."""
    return (torch.arange(NUM_WEDGES) + 0.5) * (math.pi / NUM_WEDGES)


@lru_cache(maxsize=1)
def translations() -> Tensor:
    """Return what translations along x and y make up of s at the wedges, [wedges, 2]."""
    return torch.stack([centres_rad().cos(), centres_rad().sin()], dim=1)


@lru_cache(maxsize=1)
def shapes() -> Tensor:
    """Return an orthonormal basis of what no translation makes up, [wedges, wedges - 2]."""
    whole, _ = torch.linalg.qr(translations(), mode="complete")
    basis: Tensor = whole[:, 2:].contiguous()
    return basis


def shape_of(motion: FoundMotion) -> Tensor:
    """Return s at the wedges without its translation, in the basis of ``shapes``."""
    return motion.shift_at(centres_rad()) @ shapes()


@lru_cache(maxsize=64)
def _grid(family: int, start_rad: float) -> _Grid:
    phases = torch.arange(NUM_PHASES) * (math.pi / NUM_PHASES)
    phase_rad = phases if USES_PHASE[family] else torch.zeros(1)
    pause = torch.tensor(PAUSES if USES_PAUSE[family] else (NO_PAUSE,))
    count = max(len(phase_rad), len(pause))
    phase_rad, pause = phase_rad.expand(count), pause.expand(count, 2)
    used = torch.nonzero(USES_VECTORS[family]).flatten()

    def made(angles: Tensor) -> Tensor:
        """What the parts (x, y) of the vectors add to s at angles, [G, angles, V]."""
        time = ((angles - start_rad) / math.pi + 1e-6) % 1
        normals = torch.stack([angles.cos(), angles.sin()], dim=1)
        gone = progress(time, phase_rad, pause)[..., used]
        return (gone[..., None] * normals[:, None]).flatten(2)

    angles = angles_rad()
    translation = torch.linalg.pinv(torch.stack([angles.cos(), angles.sin()], dim=1))
    views = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS, start_rad=start_rad)).float()
    return _Grid(shapes().T @ made(centres_rad()), made(views), translation @ made(angles))


def _likelier(family: int, vectors: Tensor) -> Tensor:
    """Return how much likelier the simulator draws vectors [..., V] than a normal density does.

    As logarithms, up to a constant of the family.
    """
    size_px = SIZE_PX[family]
    normal = -(vectors**2).sum(dim=-1) / (2 * size_px**2)
    parts = vectors.reshape(*vectors.shape[:-1], -1, 2)
    length = parts.norm(dim=-1)
    direction = _direction(parts).sum(dim=-1)
    if family == JITTER:
        uneven = (length.amax(dim=-1) / length.amin(dim=-1).clamp(min=1e-3)).log()
        together = _within(length.sum(dim=-1), JITTER_PX, (1.0, 2.0))
        together = together - 10 * (uneven - math.log(UNEVEN)).clamp(min=0) ** 2
        # One length is drawn and three directions: in six dimensions, that thins out.
        size = together - 5 * length.norm(dim=-1).clamp(min=1).log()
    else:  # a length and a direction in the plane
        bounded = _within(length, AMPLITUDE_RANGE_PX, LENGTH_EDGE_PX)
        size = (bounded - length.clamp(min=1).log()).sum(dim=-1)
    likelier: Tensor = direction + size - normal
    return likelier


def _direction(parts: Tensor) -> Tensor:
    """Return how likely the direction of vectors [..., 2] is, as a logarithm.

    The simulator draws the larger part m and the lesser one evenly from ranges; the density of
    their ratio r is the integral of m over all m for which r m lies in the lesser one's range.
    """
    larger, lesser = parts.abs().amax(dim=-1), parts.abs().amin(dim=-1)
    ratio = lesser / larger.clamp(min=1e-6)
    inside = ratio.clamp(LEAST_RATIO, MOST_RATIO)
    least = (OTHER_RATIO[0] / inside).clamp(min=MAIN_RATIO[0])
    most = (OTHER_RATIO[1] / inside).clamp(max=MAIN_RATIO[1])
    density = (most**2 - least**2) * (1 + ratio**2)  # of the angle, whose tangent r is
    return density.log() + _within(ratio, (LEAST_RATIO, MOST_RATIO), RATIO_EDGE)


def _within(value: Tensor, limits: tuple[float, float], edges: tuple[float, float]) -> Tensor:
    """Return 0 within limits and less beyond them, by the square of how far."""
    below, above = (limits[0] - value).clamp(min=0), (value - limits[1]).clamp(min=0)
    return -((below / edges[0]) ** 2) - (above / edges[1]) ** 2


@lru_cache(maxsize=len(FAMILIES))
def _normaliser(family: int) -> float:
    """Return the logarithm of the mean of ``_likelier`` over the normal density."""
    generator = torch.Generator().manual_seed(0)
    num_values = 2 * int(USES_VECTORS[family].sum())
    vectors = SIZE_PX[family] * torch.randn(NUM_NORMALISED, num_values, generator=generator)
    return float(_likelier(family, vectors).logsumexp(dim=0)) - math.log(NUM_NORMALISED)
