"""The spine and the descending aorta beside it, which a heart region leaves out."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from prodm.anatomy.lungs import Lungs, Mask
from prodm.volume import Volume

BONE_HU = 150.0
SOFT_HU = -30.0  # fat lies below
AORTA_MM = 12.0  # radius of the disc that is followed
AORTA_MARGIN_MM = 18.0


@dataclass(frozen=True)
class Spine:
    """For each slice, the column of the spine's middle and the row of its front."""

    x: NDArray[np.float64]
    front_y: NDArray[np.float64]


def find_spine(volume: Volume, lungs: Lungs) -> Spine | None:
    """Return where the spine lies, between and behind the lungs; None where none is in view."""
    _, dy, dx = volume.spacing_mm
    _, y_right, x_right = ndimage.center_of_mass(lungs.right)
    _, y_left, x_left = ndimage.center_of_mass(lungs.left)
    middle_x, half_width = (x_right + x_left) / 2, 45 / dx
    box = np.zeros(volume.shape, dtype=bool)
    columns = slice(max(0, int(middle_x - half_width)), int(middle_x + half_width))
    box[:, int((y_right + y_left) / 2) :, columns] = True
    bone = ndimage.binary_closing((volume.hu > BONE_HU) & box, iterations=2) & box
    bone = largest(bone)
    num_slices = volume.shape[0]
    x, front_y = np.full(num_slices, np.nan), np.full(num_slices, np.nan)
    for z in range(num_slices):
        rows, cols = np.nonzero(bone[z])
        if rows.size * dy * dx >= 180:
            x[z] = np.median(cols)
            front_y[z] = np.percentile(rows[np.abs(cols - x[z]) * dx < 12], 3)
    seen = np.flatnonzero(np.isfinite(x))
    if seen.size * volume.spacing_mm[0] < 15:
        return None
    every = np.arange(num_slices)
    smooth = round(60 / volume.spacing_mm[0]) | 1
    return Spine(
        *(
            ndimage.median_filter(np.interp(every, seen, line[seen]), smooth, mode="nearest")
            for line in (x, front_y)
        )
    )


def behind_the_heart(volume: Volume, spine: Spine) -> Mask:
    """Return the spine, what lies beside it, and the descending aorta."""
    _, dy, dx = volume.spacing_mm
    aorta = _follow_aorta(volume, spine)
    y = np.arange(volume.shape[1])[None, :, None]
    x = np.arange(volume.shape[2])[None, None, :]
    behind_front_mm = (y - spine.front_y[:, None, None]) * dy
    beside_middle_mm = np.abs(x - spine.x[:, None, None]) * dx
    from_aorta_y_mm = (y - aorta[:, 0, None, None]) * dy
    from_aorta_x_mm = (x - aorta[:, 1, None, None]) * dx
    from_aorta_mm = np.hypot(from_aorta_y_mm, from_aorta_x_mm)
    behind: Mask = (behind_front_mm > -3) & (beside_middle_mm < 28)
    behind |= behind_front_mm > 20
    behind |= from_aorta_mm <= AORTA_MARGIN_MM
    behind |= (from_aorta_y_mm > 0) & (from_aorta_x_mm > -3) & (from_aorta_mm < 26)
    return behind


def _follow_aorta(volume: Volume, spine: Spine) -> NDArray[np.float64]:
    """Return row and column of the descending aorta in each slice, [Z, 2].

    A disc of soft tissue with lung or fat around it scores high. The path through all slices with
    the best sum of scores is found by dynamic programming; it moves one step per slice at most.
    """
    _, dy, dx = volume.spacing_mm
    offsets_y_mm, offsets_x_mm = np.arange(-36.0, 19.0, 3.0), np.arange(-9.0, 46.0, 3.0)
    rows = np.arange(-round(24 / dy), round(24 / dy) + 1) * dy
    columns = np.arange(-round(24 / dx), round(24 / dx) + 1) * dx
    radius_mm = np.hypot(*np.meshgrid(rows, columns, indexing="ij"))
    disc = (radius_mm <= AORTA_MM).astype(np.float32)
    ring = ((radius_mm > AORTA_MM + 3) & (radius_mm <= AORTA_MM + 9)).astype(np.float32)
    in_disc, in_ring = disc / disc.sum(), ring / ring.sum()
    scores = []
    for z, slice_hu in enumerate(volume.hu):
        places = np.meshgrid(
            spine.front_y[z] + offsets_y_mm / dy, spine.x[z] + offsets_x_mm / dx, indexing="ij"
        )
        soft = (slice_hu > SOFT_HU).astype(np.float32)
        bone = (slice_hu > BONE_HU + 30).astype(np.float32)
        fit = ndimage.correlate(soft - bone, in_disc, mode="nearest")
        fit -= 0.7 * ndimage.correlate(soft, in_ring, mode="nearest")
        scores.append(ndimage.map_coordinates(fit, places, order=1, mode="nearest"))
    path = _best_path(np.stack(scores))
    return np.stack(
        [
            spine.front_y + offsets_y_mm[path[:, 0]] / dy,
            spine.x + offsets_x_mm[path[:, 1]] / dx,
        ],
        axis=1,
    )


def _best_path(scores: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return indices [N, 2] of the best path through scores [N, Y, X], one step at a time."""
    steps = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    price = np.array([0.03 * (abs(y) + abs(x)) for y, x in steps])[:, None, None]
    num, height, width = scores.shape
    total = scores[0].astype(np.float64)
    came_from = np.zeros(scores.shape, dtype=np.intp)
    for n in range(1, num):
        padded = np.pad(total, 1, constant_values=-np.inf)
        options = np.stack([padded[1 + y :, 1 + x :][:height, :width] for y, x in steps]) - price
        came_from[n] = options.argmax(axis=0)
        total = options.max(axis=0) + scores[n]
    path = np.zeros((num, 2), dtype=np.intp)
    path[-1] = np.unravel_index(total.argmax(), total.shape)
    for n in range(num - 1, 0, -1):
        y, x = path[n]
        path[n - 1] = path[n] + steps[came_from[n, y, x]]
    return path


def largest(mask: Mask) -> Mask:
    """Return the largest connected piece of a mask."""
    numbered, count = ndimage.label(mask)
    if count <= 1:
        return mask
    sizes = np.bincount(numbered.ravel())
    sizes[0] = 0
    piece: Mask = numbered == sizes.argmax()
    return piece
