"""Where calcium may be: what a correction looks at, and nothing else.

Motion spreads a lesion over its path and so lowers its HU: a plaque of 300 HU may peak at 110.
Candidates therefore start below the 130 HU of the score. They are sought twice, little smoothed
(0.6 mm) for what is small, and more (1.2 mm) for what is faint and spread:

    weak      smoothed HU reach 100 (80), and stand 50 (40) HU above the tissue around
    strong    smoothed HU reach 110 (85) and stand four deviations of the noise above the tissue,
              or the pixels would be scored as they are (130 HU, 1 mm2)

    narrow    an opening by a disc of 2.5 mm takes away at least 0.48 of what stands above the
              tissue, or the peak reaches 300 HU

Candidates are the connected weak voxels that hold a strong one (hysteresis) and are narrow,
inside the region alone. The region keeps ribs, sternum, spine and the descending aorta out; a
candidate never leaves it. Narrowness keeps out the bright bands that the beating wall of the
heart leaves beside the lung: they are wide and faint, where calcium, even on its way, is thin.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from prodm.calcium import CALCIUM_THRESHOLD_HU
from prodm.volume import Vector, Volume, Window

Mask = NDArray[np.bool_]

STRONG_DEVIATIONS = 4.0
SCORED_AREA_MM2 = 1.0
NARROW_RADIUS_MM = 2.5
NARROW_SHARE = 0.48  # two real scans: bands 0.34 to 0.47, coronary calcium 0.79 and more
DENSE_HU = 300.0
SURROUNDING_MM = 5.0  # deviation of the Gaussian that averages the tissue around
TISSUE_HU = (-100.0, 100.0)  # what counts as tissue around is clipped to this range
TOUCHING = np.ones((3, 3, 3), dtype=bool)
IN_PLANE = np.stack([np.zeros((3, 3), bool), np.ones((3, 3), bool), np.zeros((3, 3), bool)])


@dataclass(frozen=True)
class Scale:
    """One way to look: the deviation of the smoothing in the plane, and the thresholds for it."""

    smoothing_mm: float
    weak_hu: float
    strong_hu: float
    contrast_hu: float


SCALES = (Scale(0.6, 100.0, 110.0, 50.0), Scale(1.2, 80.0, 85.0, 40.0))


@dataclass(frozen=True, eq=False)
class Candidates:
    """Mask [Z, Y, X] of possible calcium, and how noisy the region is."""

    mask: Mask
    count: int  # connected pieces
    noise_hu: float  # deviation from pixel to pixel


def find_candidates(volume: Volume, region: Mask) -> Candidates:
    """Find what may be calcium, blurred by motion, inside a region [Z, Y, X]."""
    mask = np.zeros(volume.shape, dtype=bool)
    if not region.any():
        return Candidates(mask, 0, 0.0)
    window = bounding_box(region, 3 * SURROUNDING_MM, volume.spacing_mm)
    hu, inside = volume.hu[window].astype(np.float32), region[window]
    noise_hu = _noise_hu(hu, inside)
    around = _blur(np.clip(hu, *TISSUE_HU), SURROUNDING_MM, volume.spacing_mm)
    scored = _scored(hu, inside, volume.spacing_mm)
    for scale in SCALES:
        smooth = _blur(hu, scale.smoothing_mm, volume.spacing_mm)
        contrast = smooth - around
        weak = inside & (smooth >= scale.weak_hu) & (contrast >= scale.contrast_hu)
        strong = (smooth >= scale.strong_hu) & (contrast >= STRONG_DEVIATIONS * noise_hu)
        mask[window] |= _narrow_pieces(
            weak | scored, (weak & strong) | scored, smooth, contrast, volume.spacing_mm
        )
    _, count = ndimage.label(mask[window], structure=TOUCHING)
    return Candidates(mask, count, noise_hu)


def _narrow_pieces(
    weak: Mask,
    strong: Mask,
    smooth: NDArray[np.float32],
    contrast: NDArray[np.float32],
    spacing_mm: Vector,
) -> Mask:
    """Return the connected pieces of ``weak`` that hold a strong voxel and are narrow."""
    pieces, _ = ndimage.label(weak, structure=TOUCHING)
    chosen = np.unique(pieces[strong])
    if chosen.size == 0:
        return np.zeros_like(weak)
    voxels = np.nonzero(pieces)
    height = smooth - _opened(smooth, weak, spacing_mm)
    peaks_hu, heights_hu, contrasts_hu = (
        ndimage.maximum(image[voxels], pieces[voxels], chosen)
        for image in (smooth, height, contrast)
    )
    chosen = chosen[(heights_hu >= NARROW_SHARE * contrasts_hu) | (peaks_hu >= DENSE_HU)]
    kept: Mask = np.isin(pieces, chosen)
    return kept


def bounding_box(mask: Mask, margin_mm: float, spacing_mm: Vector) -> Window:
    """Return the window around all of a mask, with a margin, cut at the array's ends."""
    spans = []
    for axis, others in enumerate(((1, 2), (0, 2), (0, 1))):
        used = np.flatnonzero(mask.any(axis=others))
        margin = int(np.ceil(margin_mm / spacing_mm[axis]))
        start = max(0, int(used[0]) - margin)
        spans.append(slice(start, min(mask.shape[axis], int(used[-1]) + margin + 1)))
    return spans[0], spans[1], spans[2]


def _blur(hu: NDArray[np.float32], sigma_mm: float, spacing_mm: Vector) -> NDArray[np.float32]:
    """Blur each slice."""
    sigma = (0.0, sigma_mm / spacing_mm[1], sigma_mm / spacing_mm[2])
    blurred: NDArray[np.float32] = ndimage.gaussian_filter(hu, sigma, mode="nearest", truncate=3)
    return blurred


def _opened(hu: NDArray[np.float32], wanted: Mask, spacing_mm: Vector) -> NDArray[np.float32]:
    """Open the slices that hold something wanted by a disc; the others stay as they are."""
    dy, dx = spacing_mm[1:]
    rows = np.arange(-int(NARROW_RADIUS_MM / dy), int(NARROW_RADIUS_MM / dy) + 1) * dy
    columns = np.arange(-int(NARROW_RADIUS_MM / dx), int(NARROW_RADIUS_MM / dx) + 1) * dx
    disc = rows[:, None] ** 2 + columns[None, :] ** 2 <= NARROW_RADIUS_MM**2
    opened = hu.copy()
    for z in np.flatnonzero(wanted.any(axis=(1, 2))):
        opened[z] = ndimage.grey_opening(hu[z], footprint=disc)
    return opened


def _noise_hu(hu: NDArray[np.float32], inside: Mask) -> float:
    """Deviation of the noise from the differences of neighbouring pixels of soft tissue."""
    soft = inside & (hu > -30) & (hu < CALCIUM_THRESHOLD_HU)
    both = soft[:, :, 1:] & soft[:, :, :-1]
    steps = (hu[:, :, 1:] - hu[:, :, :-1])[both]
    if steps.size == 0:
        return 0.0
    return float(1.4826 * np.median(np.abs(steps)) / np.sqrt(2))


def _scored(hu: NDArray[np.float32], inside: Mask, spacing_mm: Vector) -> Mask:
    """Return the pixels that are lesions as they are, under the clinical rule."""
    patches, count = ndimage.label(inside & (hu >= CALCIUM_THRESHOLD_HU), structure=IN_PLANE)
    areas_mm2 = np.bincount(patches.ravel(), minlength=count + 1) * spacing_mm[1] * spacing_mm[2]
    large = areas_mm2 >= SCORED_AREA_MM2 - 1e-6
    large[0] = False
    kept: Mask = large[patches]
    return kept
