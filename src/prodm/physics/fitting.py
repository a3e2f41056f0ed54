"""The motion that leads from a still lesion to what was seen, by all lines of the Fourier plane.

A motion s(theta) turns the phases of the still image (``prodm.physics.phase``), and with A(s) for
that, ||A(s) still|| = ||still||. So the best s makes <moving, A(s) still> largest, and the energy
that it leaves over, as a share of all, is

    residual = ||moving - A(s) still||^2 / (||moving||^2 + ||still||^2)
             = 1 - 2 <moving, A(s) still> / (||moving||^2 + ||still||^2)

The product is a sum over the lines, one angle at a time: all shifts are tried at each angle, the
path that gains most for its steps is found by dynamic programming for each angle at which the
scan may have started, and the best paths are improved by gradient as a cosine series. Unlike
a blind search this sees translations, since the still lesion has a place. Both images are
smoothed by one pixel. Motion along z is not modelled.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from prodm.physics import phase

Block = NDArray[np.float32]
Floats = NDArray[np.float64]

SMOOTHING_PX = 1.0
PADDING_PX = 35  # a block of 64 pixels becomes 99, which transforms fast
LARGEST_PX = 20.0
NUM_VIEWS = 60
NUM_STARTS = 12
NUM_REFINED = 3
NUM_COSINES = 10
STIFFNESS = 0.02 / NUM_VIEWS  # price of one pixel from view to view, as a share of all energy
AWAY = 1e-5 / NUM_VIEWS  # price of one pixel from rest, so that what explains nothing rests
MAX_STEPS = 40


@dataclass(frozen=True, eq=False)
class FittedMotion:
    """s(theta) at ``NUM_VIEWS`` views over 180 degrees, and what it leaves over."""

    residual: float  # 0, all explained, to 1, nothing
    start_rad: float  # the angle at which the scan starts
    shift_px: Floats

    @property
    def angles_rad(self) -> Floats:
        """Angles of the views."""
        angles: Floats = phase.view_angles_rad(NUM_VIEWS, start_rad=self.start_rad)
        return angles


def fit_motion(moving: Block, still: Block, grain_energy: float = 0.0) -> FittedMotion:
    """Return the motion that leads best from one image [Z, Y, X] to another.

    ``grain_energy`` is what differs by chance and needs no explanation.
    """
    plane = cross_plane(moving, still, grain_energy)
    found = [_refine(plane, start_rad, path) for start_rad, path in _best_paths(plane)]
    gain, start_rad, shift_px = max(found, key=lambda motion: motion[0])
    residual = min(1.0, max(0.0, 1 - 2 * gain / plane.energy))
    return FittedMotion(residual, start_rad, shift_px)


@dataclass(frozen=True, eq=False)
class Plane:
    """Samples of a Fourier plane, flat: where each lies, and its part of <moving, still>."""

    turn: Floats  # 2 pi times the signed frequency
    angle_rad: Floats  # 0 to pi
    cross: NDArray[np.complex128]
    energy: float  # of both images

    def gain(self, shift_px: float) -> Floats:
        """What each sample adds to <moving, A still> when it is shifted."""
        gain: Floats = (self.cross * np.exp(1j * shift_px * self.turn)).real
        return gain


def cross_plane(moving: Block, still: Block, grain_energy: float) -> Plane:
    """Return <moving, still> of all slices over the Fourier plane, smoothed."""
    rows, columns = ((n + PADDING_PX) | 1 for n in moving.shape[1:])  # odd: no Nyquist line
    seen, rest = (np.fft.rfft2(image, (rows, columns)) for image in (moving, still))
    frequency, angle_rad = phase.polar_frequencies((rows, columns))
    turn = 2 * np.pi * frequency
    weight = np.exp(-((SMOOTHING_PX * turn) ** 2)) / (rows * columns)
    weight[:, 1:] *= 2  # the other half of the plane
    energy = float((weight * (np.abs(seen) ** 2 + np.abs(rest) ** 2)).sum()) - grain_energy
    cross = weight * (np.conj(rest) * seen).sum(axis=0)
    return Plane(turn.ravel(), angle_rad.ravel(), cross.ravel(), max(energy, 1.0))


def _best_paths(plane: Plane) -> list[tuple[float, Floats]]:
    """Return the start angles and paths s, in pixels at the views, that gain most."""
    grid_px = np.arange(-LARGEST_PX, LARGEST_PX + 1)
    views = np.floor(plane.angle_rad / np.pi * NUM_VIEWS).astype(np.int64)
    columns = [np.bincount(views, plane.gain(s), NUM_VIEWS) for s in grid_px]
    gains = np.stack(columns, axis=1) - AWAY * plane.energy * grid_px**2
    tables = []
    for first in range(0, NUM_VIEWS, NUM_VIEWS // NUM_STARTS):
        # Half a turn later, the same line is seen from the other side: s changes its sign.
        tables.append(np.concatenate([gains[first:], gains[:first, ::-1]]))
    totals, paths = smoothest_paths(np.stack(tables), STIFFNESS * plane.energy)
    order = np.argsort(-totals, kind="stable")[:NUM_REFINED]
    return [(n * np.pi / NUM_STARTS, grid_px[paths[n]]) for n in order]


def smoothest_paths(tables: Floats, price: float) -> tuple[Floats, NDArray[np.int64]]:
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


def _refine(plane: Plane, start_rad: float, path_px: Floats) -> tuple[float, float, Floats]:
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
