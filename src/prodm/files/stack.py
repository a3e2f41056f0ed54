"""Slices in space: put in order, and checked to be one regular stack.

A stack is refused with the reason when a slice lies twice at a place, when slices are
missing, unequally spaced, tilted against their axis, of different sizes or orientations, or
not axial. Distances come from positions, never from the slice thickness.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prodm.errors import ProdmError
from prodm.files.scans import StoredOrder
from prodm.volume import Direction, Grid

MAX_SLICE_PIXELS = 4096 * 4096
MAX_VOXELS = 2**31
SAME_PLACE_MM = 1e-3
ORIENTATION_TOLERANCE = 2e-3
SPACING_TOLERANCE = 0.1  # of a slice: how far a slice may lie from the regular grid
SHIFT_TOLERANCE = 0.5  # of a pixel: how far a slice may lie beside the axis of the stack
MAX_OBLIQUE_DEG = 30.0


@dataclass(frozen=True)
class Plane:
    """One slice: where it lies, and how its pixels become HU."""

    name: str  # file in the file set
    frame_index: int  # in the file, from 0
    rows: int
    columns: int
    position_xyz_mm: tuple[float, ...]  # centre of the first pixel
    orientation: tuple[float, ...]  # direction along a row, then along a column
    pixel_spacing_mm: tuple[float, ...]  # between rows, between columns
    slope: float
    intercept: float
    slice_thickness_mm: float | None = None
    spacing_between_slices_mm: float | None = None
    sop_instance_uid: str = ""


@dataclass(frozen=True)
class Stack:
    """Planes in ascending order on a grid of stored rows and columns."""

    planes: tuple[Plane, ...]
    grid: Grid
    warnings: tuple[str, ...]

    @property
    def stored_order(self) -> StoredOrder:
        """How stored rows and columns map to the volume that points to left and back."""
        rows = np.asarray(self.grid.direction)[:2, :2]  # columns: array X, array Y
        swapped = abs(rows[0, 1]) + abs(rows[1, 0]) > abs(rows[0, 0]) + abs(rows[1, 1])
        along_x, along_y = (rows[0, 1], rows[1, 0]) if swapped else (rows[0, 0], rows[1, 1])
        return StoredOrder(bool(swapped), bool(along_y < 0), bool(along_x < 0))


def arrange(planes: list[Plane], where: str) -> Stack:
    """Sort slices towards the head and check that they form a regular axial stack."""
    _check_alike(planes, where)
    along_row, along_column, normal = _axes(planes[0], where)
    _check_axial(normal, where)
    if normal[2] < 0:
        normal = -normal
    planes, warnings = _without_copies(planes, normal)
    positions = np.array([plane.position_xyz_mm for plane in planes])
    heights = positions @ normal
    spacing, more = _spacing(planes, positions, heights, normal, where)
    first = planes[0]
    shape = (len(planes), first.rows, first.columns)
    if math.prod(shape) > MAX_VOXELS or first.rows * first.columns > MAX_SLICE_PIXELS:
        raise ProdmError(f"{where} claims {shape} voxels (z, y, x), too many for a CT scan")
    x, y, z = first.position_xyz_mm
    grid = Grid(
        shape, (spacing, *_pair(first.pixel_spacing_mm)), (x, y, z),
        _direction(along_row, along_column, normal),
    )  # fmt: skip
    return Stack(tuple(planes), grid, tuple(warnings + more))


def _check_alike(planes: list[Plane], where: str) -> None:
    first = planes[0]
    for plane in planes[1:]:
        difference = np.abs(np.subtract(plane.orientation, first.orientation)).max()
        if difference > ORIENTATION_TOLERANCE:
            raise ProdmError(f"{where} mixes slices of different orientations; choose one stack")
        if (plane.rows, plane.columns) != (first.rows, first.columns):
            raise ProdmError(
                f"{where} mixes slices of {first.rows} x {first.columns} and "
                f"{plane.rows} x {plane.columns} pixels; choose one stack"
            )
        if not np.allclose(plane.pixel_spacing_mm, first.pixel_spacing_mm, rtol=1e-3):
            raise ProdmError(f"{where} mixes slices of different pixel spacing; choose one stack")
    if min(first.pixel_spacing_mm) <= 0:
        raise ProdmError(f"{where} has a pixel spacing of {first.pixel_spacing_mm} mm")


def _axes(plane: Plane, where: str) -> tuple[NDArray[np.float64], ...]:
    """Unit vectors along a row, along a column, and their normal; rounding is removed."""
    along_row, along_column = np.asarray(plane.orientation, dtype=float).reshape(2, 3)
    lengths = np.linalg.norm(along_row), np.linalg.norm(along_column)
    if not np.allclose(lengths, 1, atol=0.01) or abs(along_row @ along_column) > 0.01:
        raise ProdmError(
            f"{where} has an ImageOrientationPatient that is not two unit vectors at right angles"
        )
    along_row = along_row / lengths[0]
    along_column = along_column - (along_column @ along_row) * along_row
    along_column /= np.linalg.norm(along_column)
    return along_row, along_column, np.cross(along_row, along_column)


def _check_axial(normal: NDArray[np.float64], where: str) -> None:
    angle = math.degrees(math.acos(min(1.0, abs(float(normal[2])))))
    if angle > MAX_OBLIQUE_DEG:
        plane = ("sagittal", "coronal", "oblique")[int(np.argmax(np.abs(normal)))]
        raise ProdmError(
            f"{where} is {plane}, {angle:.0f} degrees from axial; calcium is scored on axial "
            "slices, so choose the axial series"
        )


def _without_copies(
    planes: list[Plane], normal: NDArray[np.float64]
) -> tuple[list[Plane], list[str]]:
    """Planes in ascending order; of the same image given twice, one is kept."""
    unique = {(p.sop_instance_uid or p.name, p.frame_index, p.position_xyz_mm): p for p in planes}
    copies = len(planes) - len(unique)
    ordered = sorted(unique.values(), key=lambda p: float(np.dot(p.position_xyz_mm, normal)))
    return ordered, [f"{copies} images are there twice and were taken once"] if copies else []


def _spacing(
    planes: list[Plane],
    positions: NDArray[np.float64],
    heights: NDArray[np.float64],
    normal: NDArray[np.float64],
    where: str,
) -> tuple[float, list[str]]:
    """Distance between slices, and warnings; an irregular stack is refused."""
    thickness = planes[0].slice_thickness_mm
    if len(planes) == 1:
        alone = planes[0].spacing_between_slices_mm or thickness
        if not alone or alone <= 0:
            raise ProdmError(f"{where} is one slice of unknown thickness; give the whole series")
        return alone, [f"only one slice, taken to be {alone:g} mm thick"]
    steps = np.diff(heights)
    usual = float(np.median(steps))
    if steps.min() < SAME_PLACE_MM:
        at = heights[int(np.argmin(steps))]
        raise ProdmError(
            f"{where} has {int((steps < SAME_PLACE_MM).sum())} duplicated slice positions, the "
            f"first at {at:g} mm; it holds more than one stack, so separate them"
        )
    if steps.max() > 1.5 * usual:
        at = int(np.argmax(steps))
        raise ProdmError(
            f"{where} has a gap of {steps[at]:.4g} mm between {heights[at]:g} and "
            f"{heights[at + 1]:g} mm, where slices are {usual:.4g} mm apart; slices are missing"
        )
    spacing = float(heights[-1] - heights[0]) / (len(planes) - 1)
    regular = heights[0] + spacing * np.arange(len(planes))
    if np.abs(heights - regular).max() > SPACING_TOLERANCE * spacing:
        raise ProdmError(
            f"{where} has unequal slice spacing, {steps.min():.4g} to {steps.max():.4g} mm; a "
            "regular stack is needed"
        )
    _check_straight(planes[0], positions - positions[0], heights - heights[0], normal, where)
    if thickness and abs(thickness - spacing) > 0.01 * spacing:
        return spacing, [
            f"slices are {thickness:.4g} mm thick and {spacing:.4g} mm apart; the distance counts"
        ]
    return spacing, []


def _check_straight(
    first: Plane,
    offsets: NDArray[np.float64],
    climbs: NDArray[np.float64],
    normal: NDArray[np.float64],
    where: str,
) -> None:
    """Refuse slices that do not lie straight above each other."""
    sideways = offsets - climbs[:, None] * normal
    allowed = SHIFT_TOLERANCE * min(first.pixel_spacing_mm)
    if np.linalg.norm(sideways, axis=1).max() <= allowed:
        return
    slant = sideways[-1] / climbs[-1]
    if np.linalg.norm(sideways - climbs[:, None] * slant, axis=1).max() <= allowed:
        angle = math.degrees(math.atan(float(np.linalg.norm(slant))))
        raise ProdmError(
            f"{where} was scanned with the gantry tilted by {angle:.1f} degrees, so its slices "
            "are sheared against each other; resample it to an upright stack first"
        )
    raise ProdmError(f"{where} has slices shifted sideways against each other")


def _direction(
    along_row: NDArray[np.float64],
    along_column: NDArray[np.float64],
    normal: NDArray[np.float64],
) -> Direction:
    matrix = np.stack([along_row, along_column, normal], axis=1)
    rows = [(float(a), float(b), float(c)) for a, b, c in matrix]
    return rows[0], rows[1], rows[2]


def _pair(values: tuple[float, ...]) -> tuple[float, float]:
    return float(values[0]), float(values[1])
