"""A parallel scan of calcium that turns and stretches while it moves.

The calcium at x shows at c + A (x - c) + D, with a matrix A and a displacement D for each view.
Seen along n = (cos, sin) of the view's angle, with k = |A^T n| and n' = A^T n / k,

    its projection is            det A / k    times the still one along n', read at s / k
    and that, filtered, is       det A / k^2  times the still one, filtered, read at s / k

so a rotation by a reads the still profile of the angle turned back by a, and a stretch reads it
stretched. The rest is the fast simulation's own back-projection (``prodm.physics``). No function
s(theta) describes such a motion: magnitudes change along the lines of the Fourier plane.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from prodm.physics.projection import BINS_PER_PIXEL, Profiles, filtered_projections
from prodm.physics.reconstruction import back_project, covering_radius_px

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Range = tuple[int, int]  # first and one past the last


def rotations(angles_rad: Doubles) -> Doubles:
    """Return matrices [N, 2, 2] in (x, y) that turn x towards y by each angle."""
    cosine, sine = np.cos(angles_rad), np.sin(angles_rad)
    return np.stack([np.stack([cosine, -sine], -1), np.stack([sine, cosine], -1)], -2)


def stretches(factors: Doubles, axis_rad: float) -> Doubles:
    """Return matrices [N, 2, 2] in (x, y) that stretch along one direction by each factor."""
    axis = np.array([np.cos(axis_rad), np.sin(axis_rad)])
    matrices: Doubles = np.eye(2) + (factors - 1)[:, None, None] * np.outer(axis, axis)
    return matrices


def scan_deforming(
    calcium: NDArray[np.float32] | Doubles,
    angles_rad: Doubles,
    displacement: Doubles,
    matrices: Doubles,
    *,
    centre_yx: tuple[float, float],
    rows: Range,
    columns: Range,
) -> Floats:
    """Return the image [Z, Y, X] of calcium [Z, Y, X] over zero, on rows and columns.

    Each view has an angle, a displacement (x in pixels, y in pixels, z in slices) and a matrix
    [2, 2] in (x, y) around ``centre_yx``, which counts from the calcium's first pixel.
    """
    normals = np.stack([np.cos(angles_rad), np.sin(angles_rad)], axis=1)
    seen = np.einsum("nji,nj->ni", matrices, normals)  # A^T n
    scale = np.hypot(seen[:, 0], seen[:, 1])
    # Profiles are centred at the middle of the image; elsewhere, deforming displaces besides.
    middle = (np.array(calcium.shape[:0:-1]) - 1) / 2
    arm = np.array(centre_yx[::-1]) - middle
    total = displacement.copy()
    total[:, :2] += arm - np.einsum("nij,j->ni", matrices, arm)
    shape_yx = (calcium.shape[1], calcium.shape[2])
    radius_px = covering_radius_px(shape_yx, rows, columns, total) / min(1.0, float(scale.min()))
    still_angles = np.arctan2(seen[:, 1], seen[:, 0])
    still = filtered_projections(calcium, still_angles, radius_px=radius_px)
    gain = np.linalg.det(matrices) / scale**2
    profiles = replace(still, values=_stretched(still, scale, gain), angles_rad=angles_rad)
    return back_project(profiles, total, slices=(0, calcium.shape[0]), rows=rows, columns=columns)


def _stretched(profiles: Profiles, scale: Doubles, gain: Doubles) -> Floats:
    """Return the profiles [N, Z, B] read at s / scale, times the gain."""
    num_bins = profiles.values.shape[2]
    distance = np.arange(num_bins) / BINS_PER_PIXEL - profiles.radius_px
    values = np.empty_like(profiles.values)
    for i, view in enumerate(profiles.values):
        if abs(scale[i] - 1) < 1e-9:
            values[i] = view * gain[i]
            continue
        position = (distance / scale[i] + profiles.radius_px) * BINS_PER_PIXEL
        below = np.clip(np.floor(position).astype(np.int64), 0, num_bins - 2)
        upper = (position - below).clip(0, 1) * gain[i]
        values[i] = view[:, below] * (gain[i] - upper) + view[:, below + 1] * upper
    return values
