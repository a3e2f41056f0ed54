"""A still scan and a trajectory make a moving scan.

The calcium is taken out of the still scan once; what is left is the background, and what was
taken out is the excess over it. Only the excess moves, and both engines are linear:

    moving scan = background + (excess as the scan sees it moving)

``back-projection`` reconstructs the moving excess from its projections, view by view, as in the
paper's Algorithm 1. ``phase`` turns the phases of its Fourier transform: faster, and without
the finite number of views. With ``background="reprojected"`` the background goes through
projection and reconstruction too, as in the paper; ``kept`` leaves it as it was scanned.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from prodm.calcium import AIR_HU
from prodm.errors import ProdmError
from prodm.motion.trajectory import Trajectory
from prodm.physics import phase
from prodm.physics.inpainting import remove_calcium
from prodm.physics.projection import filtered_projections
from prodm.physics.reconstruction import back_project, covering_radius_px
from prodm.volume import Volume, Window

Engine = Literal["back-projection", "phase"]
Background = Literal["kept", "reprojected"]
ENGINES: tuple[Engine, ...] = ("back-projection", "phase")
BACKGROUNDS: tuple[Background, ...] = ("kept", "reprojected")

SLICES_AT_ONCE = 8
SQUARE_TOLERANCE = 0.01
NEIGHBOURHOOD_PX = 64  # beyond it the artifacts of a lesion are weaker than noise


@dataclass(frozen=True, eq=False)
class StillScan:
    """A scan split into background and calcium, ready to be moved many times."""

    volume: Volume  # as given
    calcium: NDArray[np.uint8]  # labels [Z, Y, X] as given
    background: Volume  # float32, calcium removed
    excess: NDArray[np.float64]  # inside ``window``; zero elsewhere
    window: Window


@dataclass(frozen=True, eq=False)
class Simulated:
    """What a scan of the moving calcium shows, inside ``window`` of the still scan."""

    moving: Volume  # float32
    background: Volume  # float32: what the moving calcium lies on
    excess: NDArray[np.float32]  # moving - background
    window: Window


def prepare(volume: Volume, calcium: NDArray[np.uint8], rng: np.random.Generator) -> StillScan:
    """Split a scan into background and calcium. ``rng`` draws the grain of the filled places."""
    if calcium.shape != volume.shape:
        raise ProdmError(
            f"the calcium mask must lie on the scan's grid, {volume.shape} voxels (z, y, x), "
            f"got {calcium.shape}"
        )
    if volume.hu.dtype == np.float32 and not np.isfinite(volume.hu).all():
        raise ProdmError("the scan holds voxels that are not numbers; repair it first")
    _, dy, dx = volume.spacing_mm
    if abs(dy - dx) > SQUARE_TOLERANCE * dx:
        raise ProdmError(f"pixels must be square, got {dy:g} x {dx:g} mm; resample the scan first")
    parts = remove_calcium(volume.hu, calcium > 0, volume.spacing_mm, rng)
    background = volume.hu.astype(np.float32)
    background[parts.window] = parts.background
    return StillScan(volume, calcium, volume.with_hu(background), parts.excess, parts.window)


def move(
    still: StillScan,
    trajectory: Trajectory,
    *,
    engine: Engine = "back-projection",
    background: Background = "kept",
    filter_window: str = "ramp",
    window: Window | None = None,
) -> Simulated:
    """Return the scan in which the calcium moved, on a window or on all of it."""
    if engine not in ENGINES:
        raise ProdmError(f"there is no engine {engine!r}; choose from {', '.join(ENGINES)}")
    if background not in BACKGROUNDS:
        raise ProdmError(f"background must be one of {', '.join(BACKGROUNDS)}, got {background!r}")
    where = _checked_window(window, still.volume.shape)
    if engine == "phase":
        excess = _move_by_phase(still, trajectory, where)
    else:
        (excess,) = moving_excess(still, trajectory, [where], filter_window=filter_window)
    behind = still.background.crop(where)
    if background == "reprojected":
        behind = behind.with_hu(_reproject(still.background, trajectory, where, filter_window))
    return Simulated(behind.with_hu(behind.hu + excess), behind, excess, where)


def simulate(
    volume: Volume,
    calcium: NDArray[np.uint8],
    trajectory: Trajectory,
    *,
    rng: np.random.Generator,
    engine: Engine = "back-projection",
    background: Background = "kept",
    filter_window: str = "ramp",
    window: Window | None = None,
) -> Simulated:
    """Move the calcium of one scan along one trajectory."""
    return move(
        prepare(volume, calcium, rng),
        trajectory,
        engine=engine,
        background=background,
        filter_window=filter_window,
        window=window,
    )


def moving_excess(
    still: StillScan,
    trajectory: Trajectory,
    windows: Sequence[Window],
    *,
    filter_window: str = "ramp",
) -> list[NDArray[np.float32]]:
    """Return what moves, by back-projection, inside each of several windows of one scan.

    The projections are made once for all of them.
    """
    displacement = displacement_px(trajectory, still.volume.spacing_mm)
    wheres = [_checked_window(window, still.volume.shape) for window in windows]
    targets = [
        (_slices_seen(still, displacement, where[0]), where[1], where[2]) for where in wheres
    ]
    ranges = [_from_corner(target, still.window) for target in targets]
    shape_yx = (still.excess.shape[1], still.excess.shape[2])
    profiles = filtered_projections(
        still.excess,
        trajectory.angles_rad,
        radius_px=max(
            covering_radius_px(shape_yx, rows, columns, displacement) for _, rows, columns in ranges
        ),
        filter_window=filter_window,
    )
    parts = []
    for where, target, (slices, rows, columns) in zip(wheres, targets, ranges, strict=True):
        excess = np.zeros(tuple(axis.stop - axis.start for axis in where), np.float32)
        if slices[1] > slices[0]:
            inside = slice(target[0].start - where[0].start, target[0].stop - where[0].start)
            excess[inside] = back_project(
                profiles, displacement, slices=slices, rows=rows, columns=columns
            )
        parts.append(excess)
    return parts


def displacement_px(
    trajectory: Trajectory, spacing_mm: tuple[float, float, float]
) -> NDArray[np.float64]:
    """Return displacements [N, 3] at the views: x and y in pixels, z in slices."""
    moved: NDArray[np.float64] = trajectory.displacement(trajectory.times) / spacing_mm[::-1]
    return moved


def neighbourhood(still: StillScan, margin_px: int = NEIGHBOURHOOD_PX) -> Window:
    """Return the window around all calcium, all slices: what is worth looking at."""
    z, y, x = (
        slice(max(0, axis.start - margin), min(length, axis.stop + margin))
        for axis, length, margin in zip(
            still.window, still.volume.shape, (2, margin_px, margin_px), strict=True
        )
    )
    return z, y, x


def _move_by_phase(still: StillScan, trajectory: Trajectory, where: Window) -> NDArray[np.float32]:
    """Move the excess on the smallest box that holds it and the slices that it reaches."""
    displacement = displacement_px(trajectory, still.volume.spacing_mm)
    excess = np.zeros(tuple(axis.stop - axis.start for axis in where), np.float32)
    seen = _slices_seen(still, displacement, where[0])
    if seen.stop == seen.start:
        return excess
    target = (seen, where[1], where[2])
    box = tuple(
        slice(min(a.start, b.start), max(a.stop, b.stop))
        for a, b in zip(target, still.window, strict=True)
    )
    block = np.zeros(tuple(axis.stop - axis.start for axis in box), np.float32)
    block[_relative(still.window, box)] = still.excess
    moved = phase.move(
        block,
        displacement.astype(np.float32),
        start_rad=float(np.deg2rad(trajectory.start_deg)),
        span_deg=trajectory.span_deg,
    )
    excess[_relative(target, where)] = moved[_relative(target, box)]
    return excess


def _reproject(
    background: Volume, trajectory: Trajectory, where: Window, filter_window: str
) -> NDArray[np.float32]:
    """Project and reconstruct whole slices of the background, which is air where it ends."""
    rows, columns = (where[1].start, where[1].stop), (where[2].start, where[2].stop)
    at_rest = np.zeros((trajectory.num_angles, 3))
    radius_px = covering_radius_px(background.shape[1:], rows, columns, at_rest)
    parts = []
    for start in range(where[0].start, where[0].stop, SLICES_AT_ONCE):
        slices = background.hu[start : min(start + SLICES_AT_ONCE, where[0].stop)] - AIR_HU
        profiles = filtered_projections(
            slices.astype(np.float32),
            trajectory.angles_rad,
            radius_px=radius_px,
            filter_window=filter_window,
        )
        image = back_project(profiles, at_rest, slices=(0, len(slices)), rows=rows, columns=columns)
        parts.append(image + np.float32(AIR_HU))
    return np.concatenate(parts)


def _slices_seen(still: StillScan, displacement: NDArray[np.float64], wanted: slice) -> slice:
    """Return the wanted slices that the moving calcium reaches."""
    lowest = int(np.floor(displacement[:, 2].min())) + still.window[0].start
    highest = int(np.ceil(displacement[:, 2].max())) + still.window[0].stop
    start = max(wanted.start, lowest)
    return slice(start, max(start, min(wanted.stop, highest)))


def _checked_window(window: Window | None, shape: tuple[int, int, int]) -> Window:
    """Return a window with explicit ends; one that is empty or leaves the scan is refused."""
    if window is None:
        window = (slice(None), slice(None), slice(None))
    bounds = []
    for axis, length in zip(window, shape, strict=True):
        start = 0 if axis.start is None else axis.start
        stop = length if axis.stop is None else axis.stop
        if not 0 <= start < stop <= length or axis.step not in (None, 1):
            raise ProdmError(f"the window must lie inside the scan, {shape} voxels, got {window}")
        bounds.append(slice(start, stop))
    return bounds[0], bounds[1], bounds[2]


Range = tuple[int, int]


def _from_corner(window: Window, box: Window) -> tuple[Range, Range, Range]:
    """Return the ends of a window's axes, counted from the corner of a box."""
    z, y, x = (
        (axis.start - other.start, axis.stop - other.start)
        for axis, other in zip(window, box, strict=True)
    )
    return z, y, x


def _relative(inner: Window, outer: tuple[slice, ...]) -> Window:
    z, y, x = (
        slice(a.start - b.start, a.stop - b.start) for a, b in zip(inner, outer, strict=True)
    )
    return z, y, x
