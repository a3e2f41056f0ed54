"""Take calcium out of a scan so that the place cannot be seen.

The mask holds what reaches the threshold; blur carries calcium beyond it, in-plane and into the
neighbouring slices. So the mask is grown by that halo, and the hole is filled, slice by slice, with

    background = grain + harmonic(scan - grain)

``grain`` is noise with the standard deviation and the correlation found around the calcium, and
``harmonic`` solves Laplace's equation in the hole between the values at its rim. At the rim the
fill meets the scan voxel by voxel, so there is no edge; further in, the tissue is interpolated
and the noise is the grain's, so there is no smooth patch.

What is taken out is the excess, scan - background: zero outside the hole.
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

HALO_MM = 2.0  # in-plane reach of the blur beyond the mask
SLICE_STEP_MM = 1.0  # a neighbouring slice counts as this far away, whatever the spacing
SURROUNDINGS_MM = 12.0  # from where the noise is taken
LAGS_PX = 6  # up to which the grain's correlation is measured
FAR_LAG_PX = 4  # from which on values are taken as unrelated
MAD_TO_SD = 1.4826
LARGEST_TISSUE_HU = 300.0  # bone, lung and air tell nothing of the grain
MAX_GRAIN_SD_HU = 60.0  # more than this around the heart is structure, not noise


@dataclass(frozen=True, eq=False)
class Inpainted:
    """A scan without its calcium, and the calcium alone, inside one window.

    ``background + excess`` is the scan exactly, in double precision.
    """

    window: Window  # of the scan; it holds the calcium and its halo
    background: Doubles
    excess: Doubles


def remove_calcium(
    hu: Hounsfield, calcium: Mask, spacing_mm: Vector, rng: np.random.Generator
) -> Inpainted:
    """Replace the calcium of a scan [Z, Y, X] by what lies around it."""
    if not calcium.any():
        raise ProdmError("the calcium mask is empty; give a mask with at least one voxel")
    window = _grown_box(calcium, spacing_mm, HALO_MM)
    surroundings = _grown_box(calcium, spacing_mm, SURROUNDINGS_MM)
    scan = hu[surroundings].astype(np.float64)
    if not np.isfinite(scan).all():
        raise ProdmError("the scan holds voxels that are not numbers near the calcium")
    hole = _grown_by_halo(calcium[surroundings], spacing_mm)

    background = scan.copy()
    covariance = _grain_covariance(scan, hole, spacing_mm)
    for z in np.flatnonzero(hole.any(axis=(1, 2))):
        grain = _draw_grain(covariance, scan[z].shape, rng)
        background[z][hole[z]] = (grain + _harmonic(scan[z] - grain, hole[z]))[hole[z]]
    if hu.dtype == np.int16:
        background = np.rint(background)
    else:
        background = background.astype(np.float32).astype(np.float64)
    inner = _inside(window, surroundings)
    return Inpainted(window, background[inner], (scan - background)[inner])


def _grown_by_halo(calcium: Mask, spacing_mm: Vector) -> Mask:
    sampling = (SLICE_STEP_MM, spacing_mm[1], spacing_mm[2])
    hole: Mask = ndimage.distance_transform_edt(~calcium, sampling=sampling) <= HALO_MM
    hole[_slice_distance(calcium) > 1] = False  # blur reaches one slice up and down
    return hole


def _slice_distance(calcium: Mask) -> NDArray[np.int64]:
    """Number of slices [Z] to the nearest one that holds calcium."""
    held = np.flatnonzero(calcium.any(axis=(1, 2)))
    distance: NDArray[np.int64] = np.abs(np.arange(len(calcium))[:, None] - held).min(axis=1)
    return distance


def _harmonic(values: Doubles, hole: Mask) -> Doubles:
    """Values [Y, X] with those in the hole replaced by the solution of Laplace's equation."""
    surface = values.copy()
    rows, columns = np.nonzero(hole)
    number = np.full(values.shape, -1)
    number[rows, columns] = np.arange(len(rows))
    diagonal = np.zeros(len(rows))
    right_side = np.zeros(len(rows))
    links: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for step_y, step_x in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        y, x = rows + step_y, columns + step_x
        inside = (y >= 0) & (y < values.shape[0]) & (x >= 0) & (x < values.shape[1])
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


def _grain_covariance(scan: Doubles, hole: Mask, spacing_mm: Vector) -> Doubles:
    """Covariance [2 L + 1, 2 L + 1] of the noise around the calcium, by lag (y, x).

    From the spread of differences between voxels a lag apart: the median of their absolute
    value does not see the few pairs across an edge. At far lags the spread is that of unrelated
    noise; what is missing from it at near lags is correlation.
    """
    slices = hole.any(axis=(1, 2))
    touched = ndimage.binary_dilation(hole[slices], structure=np.ones((1, 3, 3)))
    reach_px = int(np.ceil(SURROUNDINGS_MM / spacing_mm[1]))
    near = ndimage.distance_transform_edt(~touched, sampling=(1e6, 1, 1)) <= reach_px
    usable = near & ~touched & (np.abs(scan[slices]) < LARGEST_TISSUE_HU)
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
