"""Painting anatomy onto planes: later shapes cover earlier ones.

Two kinds of shape suffice. A ``Solid`` is a smooth union of ellipsoids in straight
coordinates (``fields.Bend``), grown or shrunk by ``grow_mm``, with a rough border. ``Tubes``
are segments with a radius at either end, in the patient's own coordinates. Each is painted
as ``value * coverage + below * (1 - coverage)``, where coverage runs from 0 to 1 over one
pixel at the border; partial volume along z comes from averaging planes.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Array = NDArray[np.float64]
BLOCK_MM = 3.0


def ellipsoid(
    center_mm: Array, axes: Array, radii_mm: tuple[float, float, float], join_mm: float = 0.0
) -> Array:
    """Return one row [16] of a Solid: centre, unit axes as rows, radii along them.

    ``join_mm`` says how softly it joins those before it, where that is more than the Solid's.
    """
    return np.concatenate([center_mm, np.asarray(axes).ravel(), radii_mm, [join_mm]])


@dataclass(frozen=True, eq=False)
class Solid:
    """A smooth union of ellipsoids [N, 16]."""

    ellipsoids: Array
    hu: float
    smooth_mm: float = 1.0  # how far the union rounds the notch between two ellipsoids
    grow_mm: float = 0.0
    rough_mm: float = 0.0  # fine irregularity of the border
    sway_mm: float = 0.0  # slow irregularity of the border
    texture_hu: float = 0.0  # fine variation inside
    edge_mm: float = 0.0  # softer border than one pixel

    def distance_mm(self, straight_xyz_mm: Array) -> Array:
        """Return the signed distance [N] of points, without roughness; inside is negative."""
        distances: Array = _distances(
            np.ascontiguousarray(straight_xyz_mm), _prepare(self.ellipsoids), self.smooth_mm
        )
        return distances - self.grow_mm


@dataclass(frozen=True, eq=False)
class Tubes:
    """Segments [N, 10]: start xyz, end xyz, radius at each, vertical stretch, HU."""

    segments: Array
    texture_hu: float = 0.0


def tube(
    points_xyz_mm: Array,
    radius_mm: Array | float,
    hu: float,
    *,
    stretch: float = 1.0,
    texture_hu: float = 0.0,
) -> Tubes:
    """Return the tube along a line of points; ``stretch`` makes its section tall in z."""
    radii = np.broadcast_to(np.asarray(radius_mm, dtype=np.float64), len(points_xyz_mm))
    count = len(points_xyz_mm) - 1
    columns = [
        points_xyz_mm[:-1],
        points_xyz_mm[1:],
        radii[:-1, None],
        radii[1:, None],
        np.full((count, 1), stretch),
        np.full((count, 1), hu),
    ]
    return Tubes(np.hstack(columns), texture_hu)


@dataclass(frozen=True, eq=False)
class Canvas:
    """One plane of the patient while it is painted: HU [Y, X] and what shapes need to know."""

    hu: Floats
    z_mm: float
    y_mm: Floats  # [Y], ascending
    x_mm: Floats  # [X], ascending
    straight: tuple[Floats, Floats, Floats]  # x, y, z, each [Y, X]
    fine: Floats  # the fine random field [Y, X]
    coarse: Floats  # the coarse one
    bend_mm: float  # how far straight coordinates may lie from the patient's

    @property
    def pixel_mm(self) -> float:
        """Distance of neighbouring pixels."""
        return float(self.x_mm[1] - self.x_mm[0])

    def paint(self, shape: Solid | Tubes) -> None:
        """Cover what is there with a shape."""
        if isinstance(shape, Tubes):
            paint_tubes(
                self.hu, self.z_mm, self.y_mm, self.x_mm, shape.segments, self.fine,
                shape.texture_hu,
            )  # fmt: skip
            return
        margin = abs(shape.grow_mm) + 3 * (shape.rough_mm + shape.sway_mm) + shape.smooth_mm
        rows, window = self._reached(shape.ellipsoids, margin + shape.edge_mm + self.bend_mm)
        if window is None:
            return
        x, y, z = (axis[window] for axis in self.straight)
        paint_solid(
            self.hu[window], x, y, z, self.fine[window], self.coarse[window], rows,
            np.array([shape.hu, shape.smooth_mm, shape.grow_mm, shape.rough_mm, shape.sway_mm,
                      shape.texture_hu, max(shape.edge_mm, self.pixel_mm)]),
            self.pixel_mm,
        )  # fmt: skip

    def inside(self, solid: Solid) -> NDArray[np.bool_]:
        """Return the pixels [Y, X] inside a solid, roughness included."""
        grown = Canvas(
            np.zeros_like(self.hu), self.z_mm, self.y_mm, self.x_mm, self.straight,
            self.fine, self.coarse, self.bend_mm,
        )  # fmt: skip
        grown.paint(
            Solid(solid.ellipsoids, 1.0, solid.smooth_mm, solid.grow_mm, solid.rough_mm,
                  solid.sway_mm)
        )  # fmt: skip
        result: NDArray[np.bool_] = grown.hu > 0.5
        return result

    def _reached(
        self, ellipsoids: Array, margin_mm: float
    ) -> tuple[Array, tuple[slice, slice] | None]:
        """Return the ellipsoids that reach this plane, and the window they reach."""
        centers, radii = ellipsoids[:, :3], ellipsoids[:, 12:15]
        axes = ellipsoids[:, 3:12].reshape(-1, 3, 3)
        margin = margin_mm + ellipsoids[:, 15].max()
        reach = np.sqrt(np.einsum("nij,ni->nj", axes**2, radii**2)) + margin
        keep = np.abs(centers[:, 2] - self.z_mm) <= reach[:, 2]
        if not keep.any():
            return ellipsoids, None
        low = (centers - reach)[keep].min(axis=0)
        high = (centers + reach)[keep].max(axis=0)
        columns = slice(*np.searchsorted(self.x_mm, (low[0], high[0])))
        rows = slice(*np.searchsorted(self.y_mm, (low[1], high[1])))
        if columns.stop <= columns.start or rows.stop <= rows.start:
            return ellipsoids, None
        return _prepare(ellipsoids[keep]), (rows, columns)


def _prepare(rows: Array) -> Array:
    """Divide the axes by the radii, and invert the radii, once for all pixels."""
    ready = rows.copy()
    ready[:, 3:12] /= np.repeat(rows[:, 12:15], 3, axis=1)
    ready[:, 12:15] = 1 / rows[:, 12:15]
    return ready


@njit(cache=True, fastmath=True, inline="always")  # type: ignore[untyped-decorator]
def _ellipsoid_distance(x: float, y: float, z: float, rows: Array, n: int) -> float:
    """First-order distance: exact at the border, good near it."""
    x, y, z = x - rows[n, 0], y - rows[n, 1], z - rows[n, 2]
    a = rows[n, 3] * x + rows[n, 4] * y + rows[n, 5] * z
    b = rows[n, 6] * x + rows[n, 7] * y + rows[n, 8] * z
    c = rows[n, 9] * x + rows[n, 10] * y + rows[n, 11] * z
    level2 = a * a + b * b + c * c
    a, b, c = a * rows[n, 12], b * rows[n, 13], c * rows[n, 14]
    # level * (level - 1) / slope, with one root for the slope
    distance: float = (level2 - np.sqrt(level2)) / np.sqrt(a * a + b * b + c * c + 1e-18)
    return distance


@njit(cache=True, fastmath=True)  # type: ignore[untyped-decorator]
def _union_distance(x: float, y: float, z: float, rows: Array, smooth_mm: float) -> float:
    total: float = _ellipsoid_distance(x, y, z, rows, 0)
    for n in range(1, rows.shape[0]):
        other = _ellipsoid_distance(x, y, z, rows, n)
        join = max(smooth_mm, rows[n, 15])
        gap = join - abs(total - other)
        total = min(total, other)
        if gap > 0.0:
            total -= 0.25 * gap * gap / join
    return total


@njit(cache=True, fastmath=True)  # type: ignore[untyped-decorator]
def _distances(points: Array, rows: Array, smooth_mm: float) -> Array:
    out = np.empty(points.shape[0])
    for n in range(points.shape[0]):
        out[n] = _union_distance(points[n, 0], points[n, 1], points[n, 2], rows, smooth_mm)
    return out


@njit(cache=True, fastmath=True)  # type: ignore[untyped-decorator]
def paint_solid(
    hu: Floats,
    x: Floats,
    y: Floats,
    z: Floats,
    fine: Floats,
    coarse: Floats,
    rows: Array,
    look: Array,
    pixel_mm: float,
) -> None:
    """Paint a union of ellipsoids into a window of a plane, in place."""
    value, smooth, grow, rough, sway, texture, edge = look
    height, width = hu.shape
    # Blocks far inside or far outside need no distance per pixel.
    block = max(4, int(BLOCK_MM / pixel_mm))
    sure = 1.3 * 0.75 * block * pixel_mm + 0.5 * edge + 2.5 * rough + 0.6 * sway
    for top in range(0, height, block):
        for left in range(0, width, block):
            bottom, right = min(top + block, height), min(left + block, width)
            j, i = (top + bottom) // 2, (left + right) // 2
            near = _union_distance(x[j, i], y[j, i], z[j, i], rows, smooth) - grow
            near -= rough * fine[j, i] + sway * coarse[j, i]
            if near > sure:
                continue
            for j in range(top, bottom):
                for i in range(left, right):
                    cover = 1.0
                    if near > -sure:
                        distance = _union_distance(x[j, i], y[j, i], z[j, i], rows, smooth) - grow
                        distance -= rough * fine[j, i] + sway * coarse[j, i]
                        cover = min(0.5 - distance / edge, 1.0)
                    if cover > 0.0:
                        hu[j, i] += cover * (value + texture * fine[j, i] - hu[j, i])


@njit(cache=True, fastmath=True)  # type: ignore[untyped-decorator]
def paint_tubes(
    hu: Floats,
    z_mm: float,
    y_mm: Floats,
    x_mm: Floats,
    segments: Array,
    fine: Floats,
    texture_hu: float,
) -> None:
    """Paint segments that reach the plane at ``z_mm``, in place."""
    pixel = x_mm[1] - x_mm[0]
    for n in range(segments.shape[0]):
        row = segments[n]
        x0, y0, z0, radius0, radius1, value = row[0], row[1], row[2], row[6], row[7], row[9]
        squeeze = 1.0 / row[8]
        radius = max(row[6], row[7]) + pixel
        low_z, high_z = min(row[2], row[5]), max(row[2], row[5])
        if (low_z - z_mm) * squeeze > radius or (z_mm - high_z) * squeeze > radius:
            continue
        i0 = max(int((min(row[0], row[3]) - radius - x_mm[0]) / pixel), 0)
        i1 = min(int((max(row[0], row[3]) + radius - x_mm[0]) / pixel) + 2, x_mm.size)
        j0 = max(int((min(row[1], row[4]) - radius - y_mm[0]) / pixel), 0)
        j1 = min(int((max(row[1], row[4]) + radius - y_mm[0]) / pixel) + 2, y_mm.size)
        ax, ay, az = row[3] - row[0], row[4] - row[1], (row[5] - row[2]) * squeeze
        length2 = ax * ax + ay * ay + az * az + 1e-9
        pz = (z_mm - z0) * squeeze
        slope = radius1 - radius0
        for j in range(j0, j1):
            py = y_mm[j] - y0
            for i in range(i0, i1):
                px = x_mm[i] - x0
                t = min(max((px * ax + py * ay + pz * az) / length2, 0.0), 1.0)
                dx, dy, dz = px - t * ax, py - t * ay, pz - t * az
                distance = np.sqrt(dx * dx + dy * dy + dz * dz) - radius0 - t * slope
                cover = 0.5 - distance / pixel
                if cover > 0.0:
                    cover = min(cover, 1.0)
                    hu[j, i] += cover * (value + texture_hu * fine[j, i] - hu[j, i])
