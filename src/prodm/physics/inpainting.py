"""Take calcium out of a scan so that the place cannot be seen.

The mask holds what reaches the threshold; blur carries calcium beyond it, in-plane and into the
neighbouring slices. So the mask is grown by that halo, and the scan is replaced there by

    background = (1 - w) scan + w trend + sqrt(2 w - w^2) grain

with w = 1 over the mask and its halo, fading to 0 across a border. ``trend`` solves Laplace's
equation in each slice between the smoothed values around the hole; ``grain`` is noise with the
standard deviation and the correlation found around the calcium. The weights keep the variance of
the noise the same everywhere, so no edge and no smooth patch gives the place away.

What is taken out is the excess, scan - background: zero outside the border.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import NDArray
from scipy import ndimage

from prodm.errors import ProdmError
from prodm.volume import Hounsfield, Vector, Window

Doubles = NDArray[np.float64]
Mask = NDArray[np.bool_]

HALO_MM = 1.5  # in-plane reach of the blur beyond the mask
BORDER_MM = 1.0  # over which the replacement fades out
SLICE_STEP_MM = 1.0  # a neighbouring slice counts as this far away, whatever the spacing
SURROUNDINGS_MM = 12.0  # from where noise and trend are taken
TREND_SIGMA_MM = 0.8
LAGS_PX = 6  # up to which the grain's correlation is measured
FAR_LAG_PX = 4  # from which on values are taken as unrelated
MAD_TO_SD = 1.4826
MAX_GRAIN_SD_HU = 60.0  # more than this around the heart is structure, not noise


@dataclass(frozen=True, eq=False)
class Inpainted:
    """A scan without its calcium, and the calcium alone, inside one window.

    ``background + excess`` is the scan exactly, in double precision.
    """

    window: Window  # of the scan; it holds the calcium, its halo and the border
    background: Doubles
    excess: Doubles


def remove_calcium(
    hu: Hounsfield, calcium: Mask, spacing_mm: Vector, rng: np.random.Generator
) -> Inpainted:
    """Replace the calcium of a scan [Z, Y, X] by what lies around it."""
    if not calcium.any():
        raise ProdmError("the calcium mask is empty; give a mask with at least one voxel")
    reach_mm = HALO_MM + BORDER_MM
    window = _grown_box(calcium, spacing_mm, reach_mm)
    surroundings = _grown_box(calcium, spacing_mm, SURROUNDINGS_MM)
    scan = hu[surroundings].astype(np.float64)
    if not np.isfinite(scan).all():
        raise ProdmError("the scan holds voxels that are not numbers near the calcium")
    weight = _replacement_weight(calcium[surroundings], spacing_mm)

    background = scan.copy()
    spread = _grain_spectrum(scan, weight, spacing_mm)
    for z in np.flatnonzero(weight.any(axis=(1, 2))):
        hole = weight[z] > 0
        trend = _trend(scan[z], hole, TREND_SIGMA_MM / spacing_mm[1])
        grain = _draw_grain(spread, scan.shape[1:], rng)
        w = weight[z][hole]
        filled = (1 - w) * scan[z][hole] + w * trend[hole]
        background[z][hole] = filled + np.sqrt(2 * w - w * w) * grain[hole]
    if hu.dtype == np.int16:
        background = np.rint(background)
    else:
        background = background.astype(np.float32).astype(np.float64)
    inner = _inside(window, surroundings)
    return Inpainted(window, background[inner], (scan - background)[inner])


def _replacement_weight(calcium: Mask, spacing_mm: Vector) -> Doubles:
    """1 over the mask and its halo, falling linearly to 0 across the border."""
    sampling = (SLICE_STEP_MM, spacing_mm[1], spacing_mm[2])
    # The nearest voxel outside the mask lies one step away: measure from the voxels' edges.
    distance_mm = ndimage.distance_transform_edt(~calcium, sampling=sampling)
    weight: Doubles = np.clip((HALO_MM + BORDER_MM - distance_mm) / BORDER_MM, 0.0, 1.0)
    weight[np.abs(_slice_distance(calcium)) > 1] = 0  # blur reaches one slice up and down
    return weight


def _slice_distance(calcium: Mask) -> NDArray[np.int64]:
    """Number of slices [Z] to the nearest one that holds calcium."""
    held = np.flatnonzero(calcium.any(axis=(1, 2)))
    distance: NDArray[np.int64] = np.abs(np.arange(len(calcium))[:, None] - held).min(axis=1)
    return distance


def _trend(scan: Doubles, hole: Mask, sigma_px: float) -> Doubles:
    """Smooth surface over the hole: Laplace's equation between the smoothed values around."""
    known = (~hole).astype(np.float64)
    smoothed = ndimage.gaussian_filter(scan * known, sigma_px)
    share = ndimage.gaussian_filter(known, sigma_px)
    surface = np.where(hole, 0.0, smoothed / np.maximum(share, 1e-6))
    rows, columns = np.nonzero(hole)
    number = np.full(scan.shape, -1)
    number[rows, columns] = np.arange(len(rows))
    diagonal = np.zeros(len(rows))
    right_side = np.zeros(len(rows))
    links: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for step_y, step_x in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        y, x = rows + step_y, columns + step_x
        inside = (y >= 0) & (y < scan.shape[0]) & (x >= 0) & (x < scan.shape[1])
        index = np.flatnonzero(inside)
        neighbour = number[y[index], x[index]]
        diagonal[index] += 1
        fixed = neighbour < 0
        right_side[index[fixed]] += surface[y[index[fixed]], x[index[fixed]]]
        links.append((index[~fixed], neighbour[~fixed]))
    ends = np.concatenate([pair[0] for pair in links]), np.concatenate([pair[1] for pair in links])
    laplacian = scipy.sparse.csc_matrix(
        (-np.ones(len(ends[0])), ends), shape=(len(rows), len(rows))
    ) + scipy.sparse.diags(diagonal, format="csc")
    surface[rows, columns] = scipy.sparse.linalg.spsolve(laplacian, right_side)
    return surface


def _grain_spectrum(scan: Doubles, weight: Doubles, spacing_mm: Vector) -> Doubles:
    """Covariance [2 L + 1, 2 L + 1] of the noise around the calcium, by lag (y, x).

    From the spread of differences between voxels a lag apart: the median of their absolute
    value does not see the few pairs across an edge. At far lags the spread is that of unrelated
    noise; what is missing from it at near lags is correlation.
    """
    slices = weight.any(axis=(1, 2))
    known = ndimage.binary_dilation(weight[slices] > 0, iterations=1, structure=np.ones((1, 3, 3)))
    reach_px = int(np.ceil(SURROUNDINGS_MM / spacing_mm[1]))
    near = ndimage.distance_transform_edt(~known, sampling=(1e6, 1, 1)) <= reach_px
    usable = near & ~known & (np.abs(scan[slices]) < 300)
    values = scan[slices]
    spread = np.zeros((2 * LAGS_PX + 1, 2 * LAGS_PX + 1))
    for lag_y in range(LAGS_PX + 1):
        for lag_x in range(-LAGS_PX, LAGS_PX + 1):
            variance = _difference_variance(values, usable, lag_y, lag_x)
            spread[LAGS_PX + lag_y, LAGS_PX + lag_x] = variance
            spread[LAGS_PX - lag_y, LAGS_PX - lag_x] = variance
    lag = np.hypot(*np.mgrid[-LAGS_PX : LAGS_PX + 1, -LAGS_PX : LAGS_PX + 1])
    far = (lag >= FAR_LAG_PX) & (lag <= LAGS_PX)
    variance = min(float(np.median(spread[far])), MAX_GRAIN_SD_HU**2)
    fade = np.where(lag <= LAGS_PX, np.cos(np.pi / 2 * lag / (LAGS_PX + 1)) ** 2, 0.0)
    covariance: Doubles = np.clip(variance - spread, -variance, variance) * fade
    covariance[LAGS_PX, LAGS_PX] = variance
    return covariance


def _difference_variance(values: Doubles, usable: Mask, lag_y: int, lag_x: int) -> float:
    """Half the variance of differences a lag apart, from their median absolute value."""
    rows, columns = values.shape[1:]
    left, right = max(0, -lag_x), columns - max(0, lag_x)
    here = (slice(None), slice(0, rows - lag_y), slice(left, right))
    there = (slice(None), slice(lag_y, rows), slice(left + lag_x, right + lag_x))
    both = usable[here] & usable[there]
    if both.sum() < 16:
        return 0.0
    differences = np.abs(values[there][both] - values[here][both])
    return float(MAD_TO_SD * np.median(differences)) ** 2 / 2


def _draw_grain(covariance: Doubles, shape: tuple[int, int], rng: np.random.Generator) -> Doubles:
    """Noise [Y, X] with the given covariance."""
    rows, columns = (max(n, covariance.shape[0]) for n in shape)
    variance = covariance[LAGS_PX, LAGS_PX]
    white = rng.standard_normal((rows, columns))
    if variance <= 0:
        return np.zeros(shape)
    wrapped = np.zeros((rows, columns))
    wrapped[: covariance.shape[0], : covariance.shape[1]] = covariance
    wrapped = np.roll(wrapped, (-LAGS_PX, -LAGS_PX), (0, 1))
    power = np.maximum(np.fft.rfft2(wrapped).real, 0)
    grain = np.fft.irfft2(np.fft.rfft2(white) * np.sqrt(power), s=(rows, columns))
    # What was cut off below zero is given back to the rest, so that the variance is right.
    full = np.fft.irfft2(power, s=(rows, columns))[0, 0]
    scaled: Doubles = grain[: shape[0], : shape[1]] * np.sqrt(variance / full)
    return scaled


def _grown_box(calcium: Mask, spacing_mm: Vector, reach_mm: float) -> Window:
    """Smallest window around the mask, one slice and ``reach_mm`` in-plane wider."""
    reach = (1, *(int(np.ceil(reach_mm / spacing)) + 1 for spacing in spacing_mm[1:]))
    bounds = []
    for axis in range(3):
        others = tuple(n for n in range(3) if n != axis)
        held = np.flatnonzero(calcium.any(axis=others))
        start = max(0, int(held[0]) - reach[axis])
        bounds.append(slice(start, min(calcium.shape[axis], int(held[-1]) + 1 + reach[axis])))
    return bounds[0], bounds[1], bounds[2]


def _inside(inner: Window, outer: Window) -> Window:
    """Return the window ``inner`` in the indices of ``outer``."""
    z, y, x = (
        slice(a.start - b.start, a.stop - b.start) for a, b in zip(inner, outer, strict=True)
    )
    return z, y, x
