"""Smooth random fields over space: what makes the phantom's shapes and tissues irregular.

A field is a periodic table of Gaussian noise, smoothed and read by linear interpolation. Two
of them serve everything: a fine one (a few mm) for rough borders and grainy tissue, and a
coarse one (some cm) for slow changes. Three shifted readings of the coarse field bend space
itself: a shape is defined in straight coordinates and drawn at ``point + bend(point)``.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import ndimage

Floats = NDArray[np.float32]
BEND_OFFSETS_MM = ((0.0, 0.0, 0.0), (171.0, 83.0, 240.0), (307.0, 411.0, 129.0))


@dataclass(frozen=True, eq=False)
class RandomField:
    """Unit-variance noise [n, n, n] (z, y, x), one value per ``step_mm``, repeating."""

    table: Floats
    step_mm: float

    def plane(self, z_mm: float, y_mm: Floats, x_mm: Floats) -> Floats:
        """Return the field on the plane at one z, [Y, X]."""
        cells = self.table.shape[0]
        index, fraction = divmod(z_mm / self.step_mm, 1.0)
        below, above = int(index) % cells, (int(index) + 1) % cells
        layer = (1 - fraction) * self.table[below] + fraction * self.table[above]
        plane: Floats = _bilinear(
            layer.astype(np.float32),
            y_mm / np.float32(self.step_mm),
            x_mm / np.float32(self.step_mm),
        )
        return plane

    def at(self, points_xyz_mm: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the field at points [N, 3]."""
        indices = points_xyz_mm[:, ::-1].T / self.step_mm
        values: NDArray[np.float64] = ndimage.map_coordinates(
            self.table.astype(np.float64), indices, order=1, mode="grid-wrap"
        )
        return values


def draw_field(
    rng: np.random.Generator, step_mm: float, smooth_mm: float, cells: int = 64
) -> RandomField:
    """Draw a field whose values hang together over about ``smooth_mm``."""
    noise = rng.standard_normal((cells, cells, cells), dtype=np.float32)
    noise = ndimage.gaussian_filter(noise, smooth_mm / step_mm, mode="wrap")
    return RandomField((noise / noise.std()).astype(np.float32), step_mm)


@dataclass(frozen=True, eq=False)
class Bend:
    """A smooth displacement of space, ``amplitude_mm`` per axis."""

    field: RandomField
    amplitude_mm: float

    def plane(self, z_mm: float, y_mm: Floats, x_mm: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the straight coordinates (x, y, z), each [Y, X], of a plane's points."""
        (ax, ay, az), (bx, by, bz), (cx, cy, cz) = BEND_OFFSETS_MM
        scale = np.float32(self.amplitude_mm)
        add = np.float32
        x = x_mm[None, :] + scale * self.field.plane(z_mm + az, y_mm + add(ay), x_mm + add(ax))
        y = y_mm[:, None] + scale * self.field.plane(z_mm + bz, y_mm + add(by), x_mm + add(bx))
        z = add(z_mm) + scale * self.field.plane(z_mm + cz, y_mm + add(cy), x_mm + add(cx))
        return x, y, z

    def straight(self, points_xyz_mm: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the straight coordinates [N, 3] of points of the patient."""
        shifts = [self.field.at(points_xyz_mm + np.array(offset)) for offset in BEND_OFFSETS_MM]
        return points_xyz_mm + self.amplitude_mm * np.stack(shifts, axis=1)

    def patient(self, straight_xyz_mm: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the points of the patient with these straight coordinates."""
        points = np.array(straight_xyz_mm, dtype=np.float64)
        for _ in range(12):  # the bend is a contraction: each round gains most of a digit
            points = points + straight_xyz_mm - self.straight(points)
        return points


@njit(cache=True, fastmath=True)  # type: ignore[untyped-decorator]
def _bilinear(layer: Floats, rows: Floats, columns: Floats) -> Floats:
    cells = layer.shape[0]
    out = np.empty((rows.size, columns.size), np.float32)
    left = np.empty(columns.size, np.int64)
    right = np.empty(columns.size, np.int64)
    part = np.empty(columns.size, np.float32)
    for i in range(columns.size):
        first = int(np.floor(columns[i]))
        left[i], right[i], part[i] = first % cells, (first + 1) % cells, columns[i] - first
    mixed = np.empty(cells, np.float32)
    for j in range(rows.size):
        top = int(np.floor(rows[j]))
        v = np.float32(rows[j] - top)
        upper, lower = top % cells, (top + 1) % cells
        for n in range(cells):
            mixed[n] = layer[upper, n] + v * (layer[lower, n] - layer[upper, n])
        for i in range(columns.size):
            a = mixed[left[i]]
            out[j, i] = a + part[i] * (mixed[right[i]] - a)
    return out
