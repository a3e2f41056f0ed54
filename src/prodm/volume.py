"""A CT volume and the grid that places it in the patient.

Arrays are [Z, Y, X]: rows of an axial slice run along Y, columns along X, and slices ascend
towards the head. Spacing follows the array, ``spacing_mm = (z, y, x)``. Positions are in
DICOM's patient coordinates, LPS: x to the patient's left, y to the back, z to the head; they
are written ``(x, y, z)`` and their names end in ``_xyz_mm``. With index (i, j, k) along
(X, Y, Z), the centre of a voxel lies at

    position = origin + direction @ (i * spacing_x, j * spacing_y, k * spacing_z)

so the columns of ``direction`` are the unit vectors of the array's X, Y and Z axes. The
three are at right angles to each other: a stack sheared by a tilted gantry is not a Volume.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from prodm.errors import ProdmError

Index = tuple[int, int, int]
Vector = tuple[float, float, float]
Direction = tuple[Vector, Vector, Vector]  # three rows
Window = tuple[slice, slice, slice]
Hounsfield = NDArray[np.int16 | np.float32]

AXIAL: Direction = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
GRID_TOLERANCE = 0.01  # of a voxel: rounding in headers stays below, a real mismatch above
DIRECTION_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Grid:
    """Where the voxels of an array [Z, Y, X] lie in the patient.

    >>> grid = Grid((2, 4, 4), (3.0, 0.5, 0.5), (-10.0, -20.0, 100.0))
    >>> grid.position_xyz_mm((1, 0, 2))
    (-9.0, -20.0, 103.0)
    """

    shape: Index
    spacing_mm: Vector
    origin_xyz_mm: Vector = (0.0, 0.0, 0.0)
    direction: Direction = AXIAL

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise ProdmError(f"a grid needs three axes of at least one voxel, got {self.shape}")
        if not all(np.isfinite(s) and s > 0 for s in self.spacing_mm):
            raise ProdmError(f"voxel spacing must be positive, got {self.spacing_mm} mm")
        matrix = np.asarray(self.direction, dtype=float)
        if not np.allclose(matrix.T @ matrix, np.eye(3), atol=DIRECTION_TOLERANCE):
            raise ProdmError("the axes of a volume must be unit vectors at right angles")

    @property
    def voxel_volume_mm3(self) -> float:
        """Volume of one voxel."""
        return float(np.prod(self.spacing_mm))

    @property
    def affine(self) -> NDArray[np.float64]:
        """Matrix [4, 4] from the index (i, j, k) along (X, Y, Z) to LPS mm."""
        matrix = np.eye(4)
        matrix[:3, :3] = np.asarray(self.direction) * self.spacing_mm[::-1]
        matrix[:3, 3] = self.origin_xyz_mm
        return matrix

    def position_xyz_mm(self, index_zyx: Sequence[float]) -> Vector:
        """Return the position of a voxel's centre; fractions of a voxel are allowed."""
        x, y, z = (self.affine @ (*reversed(index_zyx), 1.0))[:3]
        return float(x), float(y), float(z)

    def index_zyx(self, position_xyz_mm: Sequence[float]) -> Vector:
        """Return the index, with fractions, of a position."""
        i, j, k = np.linalg.solve(self.affine, (*position_xyz_mm, 1.0))[:3]
        return float(k), float(j), float(i)

    def crop(self, window: Window) -> "Grid":
        """Return the grid of ``array[window]``. Steps other than 1 are refused."""
        bounds = [axis.indices(length) for axis, length in zip(window, self.shape, strict=True)]
        if any(step != 1 for _, _, step in bounds):
            raise ProdmError(f"a crop takes every voxel of its window, got {window}")
        z, y, x = (stop - start for start, stop, _ in bounds)
        origin = self.position_xyz_mm([start for start, _, _ in bounds])
        return replace(self, shape=(z, y, x), origin_xyz_mm=origin)

    def transpose(self, axes: Sequence[int]) -> "Grid":
        """Return the grid of ``array.transpose(axes)``."""
        columns = np.asarray(self.direction)[:, ::-1][:, list(axes)][:, ::-1]
        z, y, x = (self.shape[axis] for axis in axes)
        dz, dy, dx = (self.spacing_mm[axis] for axis in axes)
        return replace(
            self, shape=(z, y, x), spacing_mm=(dz, dy, dx), direction=_direction(columns)
        )

    def flip(self, axis: int) -> "Grid":
        """Return the grid of ``np.flip(array, axis)``."""
        last = [0, 0, 0]
        last[axis] = self.shape[axis] - 1
        signs = np.ones(3)
        signs[2 - axis] = -1
        columns = np.asarray(self.direction) * signs
        return replace(
            self, origin_xyz_mm=self.position_xyz_mm(last), direction=_direction(columns)
        )

    def resample(self, spacing_mm: Vector) -> "Grid":
        """Return a grid of another spacing that covers the same box, edge to edge.

        The count of voxels is rounded, and the spacing then fitted to the box.
        """
        size_mm = [n * s for n, s in zip(self.shape, self.spacing_mm, strict=True)]
        z, y, x = (max(1, round(size / s)) for size, s in zip(size_mm, spacing_mm, strict=True))
        dz, dy, dx = size_mm[0] / z, size_mm[1] / y, size_mm[2] / x
        first = [
            (new / old - 1) / 2 for new, old in zip((dz, dy, dx), self.spacing_mm, strict=True)
        ]
        return replace(
            self,
            shape=(z, y, x),
            spacing_mm=(dz, dy, dx),
            origin_xyz_mm=self.position_xyz_mm(first),
        )

    def mismatch(self, other: "Grid") -> str | None:
        """Say in which way ``other`` differs from this grid, or None where it does not.

        >>> grid = Grid((2, 4, 4), (3.0, 0.5, 0.5))
        >>> grid.mismatch(grid) is None
        True
        >>> grid.mismatch(Grid((2, 4, 4), (3.0, 0.5, 0.6)))
        'its spacing is (3, 0.5, 0.6) mm (z, y, x) instead of (3, 0.5, 0.5)'
        """
        if other.shape != self.shape:
            return f"it has {other.shape} voxels (z, y, x) instead of {self.shape}"
        if not np.allclose(other.spacing_mm, self.spacing_mm, rtol=2e-3):
            return (
                f"its spacing is {_rounded(other.spacing_mm)} mm (z, y, x) "
                f"instead of {_rounded(self.spacing_mm)}"
            )
        if not np.allclose(other.direction, self.direction, atol=5e-3):
            return "its axes point in other directions"
        corners = ((0, 0, 0), tuple(n - 1 for n in self.shape))
        for corner in corners:
            offset = np.subtract(other.position_xyz_mm(corner), self.position_xyz_mm(corner))
            if np.any(np.abs(offset) > 0.1 * min(self.spacing_mm) + 1e-3):
                return f"it lies {_rounded(offset)} mm (x, y, z) away"
        return None


@dataclass(frozen=True, eq=False)
class Volume:
    """Hounsfield units [Z, Y, X], int16 or float32, on a grid."""

    hu: Hounsfield
    grid: Grid

    def __post_init__(self) -> None:
        if self.hu.shape != self.grid.shape:
            raise ProdmError(f"the array is {self.hu.shape} but its grid is {self.grid.shape}")
        if self.hu.dtype not in (np.int16, np.float32):
            raise ProdmError(f"HU must be int16 or float32, got {self.hu.dtype}")

    @property
    def shape(self) -> Index:
        """Number of voxels (z, y, x)."""
        return self.grid.shape

    @property
    def spacing_mm(self) -> Vector:
        """Distance between voxel centres (z, y, x)."""
        return self.grid.spacing_mm

    def with_hu(self, hu: Hounsfield) -> "Volume":
        """Return other values on the same grid."""
        return Volume(hu, self.grid)

    def crop(self, window: Window) -> "Volume":
        """Return the part inside a window of indices; the values are copied."""
        return Volume(self.hu[window].copy(), self.grid.crop(window))

    def paste(self, block: "Volume") -> "Volume":
        """Return a copy with ``block`` laid over the place that its grid names."""
        if block.hu.dtype != self.hu.dtype:
            raise ProdmError(f"cannot paste {block.hu.dtype} values into {self.hu.dtype} ones")
        first = np.asarray(self.grid.index_zyx(block.grid.origin_xyz_mm))
        corner = np.rint(first).astype(int)
        window = tuple(
            slice(int(start), int(start) + n) for start, n in zip(corner, block.shape, strict=True)
        )
        inside = np.all(corner >= 0) and np.all(corner + block.shape <= self.shape)
        same_axes = np.allclose(block.grid.direction, self.grid.direction, atol=1e-3)
        same_step = np.allclose(block.spacing_mm, self.spacing_mm, rtol=1e-3)
        if not (inside and same_axes and same_step):
            raise ProdmError("the block to paste does not lie inside the volume on its grid")
        if np.any(np.abs(first - corner) > GRID_TOLERANCE):
            raise ProdmError("the block to paste lies between the voxels of the volume")
        hu = self.hu.copy()
        hu[window] = block.hu
        return Volume(hu, self.grid)

    def flip(self, axis: int) -> "Volume":
        """Return the volume read backwards along one array axis; no voxel moves in space."""
        return Volume(np.ascontiguousarray(np.flip(self.hu, axis)), self.grid.flip(axis))

    def transpose(self, axes: Sequence[int]) -> "Volume":
        """Return the volume with its array axes in another order; no voxel moves in space."""
        hu = np.ascontiguousarray(self.hu.transpose(tuple(axes)))
        return Volume(hu, self.grid.transpose(axes))

    def to_lps(self) -> "Volume":
        """Return the volume whose axes point as nearly as can be to left, back and head.

        Only the order of voxels in memory changes.
        """
        directions = np.asarray(self.grid.direction)[:, ::-1]  # columns: axes 0, 1, 2
        best = max(
            permutations(range(3)),
            key=lambda axes: sum(abs(directions[2 - n, axis]) for n, axis in enumerate(axes)),
        )
        volume = self.transpose(best) if best != (0, 1, 2) else self
        for axis in range(3):
            if volume.grid.direction[2 - axis][2 - axis] < 0:
                volume = volume.flip(axis)
        return volume

    def resample(self, spacing_mm: Vector) -> "Volume":
        """Return float32 HU on a grid of another spacing over the same box.

        Interpolates linearly where the new grid is finer and averages, with a triangle as
        wide as the new voxels, where it is coarser. A constant stays constant.
        """
        grid = self.grid.resample(spacing_mm)
        hu = self.hu.astype(np.float32)
        for axis in range(3):
            if grid.shape[axis] == self.shape[axis]:
                continue
            weights = _triangle_weights(self.shape[axis], grid.shape[axis])
            hu = np.moveaxis(np.tensordot(weights, hu, axes=(1, axis)), 0, axis)
        return Volume(np.ascontiguousarray(hu, dtype=np.float32), grid)


def _triangle_weights(num_old: int, num_new: int) -> NDArray[np.float32]:
    """Rows [num_new, num_old] of interpolation weights that sum to 1."""
    step = num_old / num_new
    centres = np.clip((np.arange(num_new) + 0.5) * step - 0.5, 0, num_old - 1)
    width = max(1.0, step)
    distance = np.abs(centres[:, None] - np.arange(num_old)[None, :])
    weights = np.maximum(0.0, 1 - distance / width)
    normalised: NDArray[np.float32] = (weights / weights.sum(axis=1, keepdims=True)).astype(
        np.float32
    )
    return normalised


def _direction(columns: NDArray[np.float64]) -> Direction:
    rows = [(float(a), float(b), float(c)) for a, b, c in columns]
    return rows[0], rows[1], rows[2]


def _rounded(values: Sequence[float] | NDArray[np.float64]) -> str:
    return "(" + ", ".join(f"{value:.4g}" for value in values) + ")"
