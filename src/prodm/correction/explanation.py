"""Does a motion explain the input from the correction? Asked of the two images alone.

Motion turns the phases of what moves and leaves their magnitudes (``prodm.physics.phase``). So
if a correction is right, some s(theta) leads from its calcium back to what was seen. The method
that made it does not matter: only the block before and after is looked at.

    still    the calcium of the corrected block over the tissue around it
    moving   still + (before - after), near calcium; what did not change cancels, noise included

No s(theta) makes a lesion brighter, larger or another one: with A(s) for the motion,
||A(s) still|| = ||still||. So the energy that is left over, as a share of all, is

    residual = ||moving - A(s) still||^2 / (||moving||^2 + ||still||^2)
             = 1 - 2 <moving, A(s) still> / (||moving||^2 + ||still||^2)

It is 0 where a motion explains everything, 1 where calcium was deleted or invented, and small
where little changed. Both images are smoothed by one pixel, which commutes with A(s), and the
energy of grain that a correction changed, as seen away from calcium, is taken off.

The best s makes <moving, A(s) still> largest. That is a sum over the lines of the Fourier plane,
one angle at a time: all shifts are tried at each angle, the path that gains most for its steps
is found by dynamic programming for each angle at which the scan may have started, and the best
paths are improved by gradient as a cosine series. Motion along z is not modelled.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, optimize

from prodm.errors import ProdmError
from prodm.physics import phase
from prodm.volume import Hounsfield

Block = NDArray[np.float32]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

UNEXPLAINED = 0.4  # a residual above it is worth a warning; see docs/correction.md

SMOOTHING_PX = 1.0
TISSUE_HU = (-100.0, 100.0)  # what counts as tissue around is clipped to this range
TISSUE_PX = 8.0
WEAK_HU, WEAK_CONTRAST_HU = 80.0, 40.0  # calcium reaches this, smoothed ...
SEED_HU, SEED_CONTRAST_HU = 100.0, 60.0  # ... and this somewhere
CHANGED_HU = 20.0  # calcium whose smoothed HU change less was left as it is
HALO_PX = 3  # a lesion's blur beyond its bright part
FILL_PX = 4.0
ABOVE_HU = 20.0  # tissue behind a lesion is brighter than the tissue around by no more
REACH_PX = 15  # what is farther from calcium is not looked at

PADDING_PX = 33
LARGEST_PX = 20.0
NUM_VIEWS = 60
NUM_STARTS = 12
NUM_REFINED = 3
NUM_COSINES = 10
STIFFNESS = 0.02 / NUM_VIEWS  # price of one pixel from view to view, as a share of all energy
AWAY = 1e-5 / NUM_VIEWS  # price of one pixel from rest, so that what explains nothing rests
MAX_STEPS = 40
TOUCHING = np.ones((3, 3, 3), dtype=bool)


@dataclass(frozen=True)
class Explanation:
    """The motion that leads best from a correction to its input, and what it leaves over."""

    residual: float  # 0, all explained, to 1, nothing
    angles_deg: tuple[float, ...]  # of the views, from the start of the scan on
    shift_mm: tuple[float, ...]  # s at those angles

    @property
    def largest_mm(self) -> float:
        """How far the calcium was seen from its corrected place at most, along a view."""
        return max(abs(shift) for shift in self.shift_mm)

    def to_json(self) -> dict[str, Any]:
        """Return the entry of ``result.json``."""
        return {
            "residual": round(self.residual, 4),
            "angles_deg": [round(angle, 3) for angle in self.angles_deg],
            "shift_mm": [round(shift, 3) for shift in self.shift_mm],
        }


def explain(block_hu: Hounsfield, corrected_hu: Hounsfield, pixel_mm: float) -> Explanation | None:
    """Return the motion that best explains a block [Z, Y, X] from its correction.

    None where no calcium changed.
    """
    if block_hu.shape != corrected_hu.shape or block_hu.ndim != 3:
        raise ProdmError(
            "input and correction must be blocks [Z, Y, X] of one shape, got "
            f"{block_hu.shape} and {corrected_hu.shape}"
        )
    before, after = block_hu.astype(np.float32), corrected_hu.astype(np.float32)
    change = before - after
    if not change.any():
        return None
    seen, lesions = _changed_calcium(before, after)
    if not (seen | lesions).any():
        return None
    still = _excess(before, after, lesions)
    near = _grown(seen | lesions, REACH_PX)
    moving = np.where(near, change + still, 0)
    residual, start_rad, shift_px = _fit(moving, still, _grain_energy(change, near))
    angles_deg = np.rad2deg(phase.view_angles_rad(NUM_VIEWS, start_rad=start_rad))
    shift_mm = shift_px * pixel_mm
    return Explanation(residual, tuple(angles_deg.tolist()), tuple(shift_mm.tolist()))


def _changed_calcium(before: Block, after: Block) -> tuple[Mask, Mask]:
    """Return the calcium of both blocks, without the pieces that did not change."""
    seen, lesions = _bright(before), _bright(after)
    pieces, count = ndimage.label(seen | lesions, TOUCHING)
    largest = ndimage.maximum(np.abs(_smooth(before - after)), pieces, np.arange(count + 1))
    changed = np.asarray(largest) >= CHANGED_HU
    changed[0] = False
    return seen & changed[pieces], lesions & changed[pieces]


def _bright(hu: Block) -> Mask:
    """Return the connected voxels that stand above the tissue around, where some do clearly."""
    smooth = _smooth(hu)
    contrast = smooth - _smooth(np.clip(hu, *TISSUE_HU), TISSUE_PX)
    weak = (smooth >= WEAK_HU) & (contrast >= WEAK_CONTRAST_HU)
    pieces, _ = ndimage.label(weak, TOUCHING)
    seeds = np.unique(pieces[weak & (smooth >= SEED_HU) & (contrast >= SEED_CONTRAST_HU)])
    bright: Mask = np.isin(pieces, seeds) & weak
    return bright


def _excess(before: Block, after: Block, lesions: Mask) -> Block:
    """Return what lesions and their halo add to the tissue behind them.

    Behind a lesion lies the tissue of its surroundings, or what the input shows there if that
    is darker.
    """
    taken = _grown(lesions, HALO_PX)
    weight = _smooth((~taken).astype(np.float32), FILL_PX)
    around = _smooth(np.where(taken, 0, after), FILL_PX) / np.maximum(weight, np.float32(1e-3))
    tissue = np.minimum(around + np.float32(ABOVE_HU), _smooth(before))
    excess: Block = np.where(taken, after - tissue, 0)
    return excess


def _smooth(hu: Block, sigma_px: float = SMOOTHING_PX) -> Block:
    smoothed: Block = ndimage.gaussian_filter(hu, (0, sigma_px, sigma_px), mode="nearest")
    return smoothed


def _grown(mask: Mask, radius_px: int) -> Mask:
    """Return all pixels within a radius of a mask, slice by slice."""
    distance_px = [
        ndimage.distance_transform_edt(~part) if part.any() else np.full(part.shape, np.inf)
        for part in mask
    ]
    grown: Mask = np.stack(distance_px) <= radius_px
    return grown


def _grain_energy(change: Block, near: Mask) -> float:
    """Energy, near calcium, of the grain that changed; judged by what changed elsewhere."""
    away = _smooth(change)[~near]
    if away.size == 0:
        return 0.0
    return float((1.4826 * np.median(np.abs(away))) ** 2 * np.count_nonzero(near))


@dataclass(frozen=True, eq=False)
class _Plane:
    """Samples of a Fourier plane, flat: where each lies, and its part of <moving, still>."""

    turn: Floats  # 2 pi times the signed frequency
    angle_rad: Floats  # 0 to pi
    cross: NDArray[np.complex128]
    energy: float  # of both images

    def gain(self, shift_px: float) -> Floats:
        """What each sample adds to <moving, A still> when it is shifted."""
        gain: Floats = (self.cross * np.exp(1j * shift_px * self.turn)).real
        return gain


def _fit(moving: Block, still: Block, grain_energy: float) -> tuple[float, float, Floats]:
    """Return the residual, the angle of the first view, and s in pixels at the views."""
    plane = _transform(moving, still, grain_energy)
    found = [_refine(plane, start_rad, path) for start_rad, path in _best_paths(plane)]
    gain, start_rad, shift_px = max(found, key=lambda motion: motion[0])
    return min(1.0, max(0.0, 1 - 2 * gain / plane.energy)), start_rad, shift_px


def _transform(moving: Block, still: Block, grain_energy: float) -> _Plane:
    """Return <moving, still> of all slices over the Fourier plane, smoothed."""
    rows, columns = ((n + PADDING_PX) | 1 for n in moving.shape[1:])  # odd: no Nyquist line
    seen, rest = (np.fft.rfft2(image, (rows, columns)) for image in (moving, still))
    frequency, angle_rad = phase.polar_frequencies((rows, columns))
    turn = 2 * np.pi * frequency
    weight = np.exp(-((SMOOTHING_PX * turn) ** 2)) / (rows * columns)
    weight[:, 1:] *= 2  # the other half of the plane
    energy = float((weight * (np.abs(seen) ** 2 + np.abs(rest) ** 2)).sum()) - grain_energy
    cross = weight * (np.conj(rest) * seen).sum(axis=0)
    return _Plane(turn.ravel(), angle_rad.ravel(), cross.ravel(), max(energy, 1.0))


def _best_paths(plane: _Plane) -> list[tuple[float, Floats]]:
    """Return the start angles and paths s, in pixels at the views, that gain most."""
    grid_px = np.arange(-LARGEST_PX, LARGEST_PX + 1)
    views = np.floor(plane.angle_rad / np.pi * NUM_VIEWS).astype(np.int64)
    columns = [np.bincount(views, plane.gain(s), NUM_VIEWS) for s in grid_px]
    gains = np.stack(columns, axis=1) - AWAY * plane.energy * grid_px**2
    tables = []
    for first in range(0, NUM_VIEWS, NUM_VIEWS // NUM_STARTS):
        # Half a turn later, the same line is seen from the other side: s changes its sign.
        tables.append(np.concatenate([gains[first:], gains[:first, ::-1]]))
    totals, paths = _smoothest_paths(np.stack(tables), STIFFNESS * plane.energy)
    order = np.argsort(-totals, kind="stable")[:NUM_REFINED]
    return [(n * np.pi / NUM_STARTS, grid_px[paths[n]]) for n in order]


def _smoothest_paths(tables: Floats, price: float) -> tuple[Floats, NDArray[np.int64]]:
    """Return what the best path through each table [N, M, S] gains, and its states [N, M].

    A step of d states from one row to the next costs ``price`` times d squared.
    """
    numbers, states = np.arange(tables.shape[0]), np.arange(tables.shape[2])
    prices = price * (states[:, None] - states[None, :]) ** 2
    best = tables[:, 0]
    sources = []
    for row in range(1, tables.shape[1]):
        options = best[:, None, :] - prices
        sources.append(options.argmax(axis=2))
        best = options.max(axis=2) + tables[:, row]
    path = [best.argmax(axis=1)]
    for source in reversed(sources):
        path.append(source[numbers, path[-1]])
    return best.max(axis=1), np.stack(path[::-1], axis=1)


def _refine(plane: _Plane, start_rad: float, path_px: Floats) -> tuple[float, float, Floats]:
    """Improve a path as a cosine series; return its gain, the first view, and s at the views."""
    at_views = _series((np.arange(NUM_VIEWS) + 0.5) / NUM_VIEWS)
    first = np.linalg.lstsq(at_views, path_px, rcond=None)[0]
    is_later = plane.angle_rad < start_rad
    series = _series((plane.angle_rad - start_rad) / np.pi + is_later)
    turn = np.where(is_later, -plane.turn, plane.turn)

    def loss(coefficients: Floats) -> tuple[float, Floats]:
        turned = plane.cross * np.exp(1j * turn * (series @ coefficients)) / plane.energy
        return -float(turned.real.sum()), (turn * turned.imag) @ series

    solved = optimize.minimize(
        loss, first, jac=True, method="L-BFGS-B", options={"maxiter": MAX_STEPS}
    )
    shift_px: Floats = at_views @ solved.x
    return -float(solved.fun) * plane.energy, start_rad + np.pi / (2 * NUM_VIEWS), shift_px


def _series(times: Floats) -> Floats:
    """Return cosines over the scan, and a sine, so that translations are among them [N, n]."""
    cosines = np.cos(np.pi * np.outer(times, np.arange(NUM_COSINES)))
    return np.concatenate([cosines, np.sin(np.pi * times)[:, None]], axis=1)
