"""Pictures of motions and of what they do to calcium."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from prodm.motion.profiles import PROFILES, draw
from prodm.motion.trajectory import Trajectory
from prodm.pairs.simulate import Simulated, StillScan
from prodm.runs import replacing

WINDOW_HU = (-150.0, 450.0)
VIEW_PX = 96
NUM_SLICES_SHOWN = 4
AXIS_COLOURS = {"x": "tab:blue", "y": "tab:orange", "z": "tab:green"}


def save_profiles(path: Path, *, seed: int = 0, pixel_spacing_mm: float = 0.4) -> None:
    """Draw one trajectory of each of the 21 profiles, displacement in mm over the scan."""
    figure = Figure(figsize=(14, 7), layout="constrained")
    panels = figure.subplots(3, 7, sharex=True, sharey=True)
    times = np.linspace(0, 1, 400, endpoint=False)
    # One column for each family and main axis, one row for each size.
    ordered = [name for band in ("small", "medium", "large") for name in PROFILES if band in name]
    for panel, name in zip(panels.ravel(), ordered, strict=True):
        rng = np.random.default_rng([seed, PROFILES.index(name)])
        path_mm = draw(name, rng, pixel_spacing_mm=pixel_spacing_mm).displacement(times)
        for axis, (letter, colour) in enumerate(AXIS_COLOURS.items()):
            panel.plot(times, path_mm[:, axis], color=colour, label=letter)
        panel.set_title(name, fontsize=9)
        panel.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    panels[0, 0].legend(fontsize=8)
    figure.supxlabel("time, from the first view to the last")
    figure.supylabel(f"displacement in mm (pixels of {pixel_spacing_mm:g} mm)")
    _save(figure, path)


def save_before_and_after(
    path: Path, still: StillScan, moved: Simulated, trajectory: Trajectory
) -> None:
    """Show the slices with most calcium, still and moving, around the calcium, and the path.

    ``moved`` holds whole slices of the still scan.
    """
    slices = _busiest_slices(still.calcium)
    figure = Figure(figsize=(3 * len(slices) + 3, 6.2), layout="constrained")
    panels = figure.subplots(2, len(slices) + 1, squeeze=False)
    for column, z in enumerate(slices):
        rows, columns = _view(still.calcium[z])
        for row, (title, hu) in enumerate(
            (("still", still.volume.hu), ("moving", moved.moving.hu))
        ):
            panel = panels[row, column]
            panel.imshow(hu[z, rows, columns], cmap="gray", vmin=WINDOW_HU[0], vmax=WINDOW_HU[1])
            panel.set_title(f"{title}, slice {z}", fontsize=9)
            panel.set_axis_off()
    path_mm = trajectory.displacement(trajectory.times)
    in_time, in_plane = panels[:, -1]
    for axis, (letter, colour) in enumerate(AXIS_COLOURS.items()):
        in_time.plot(trajectory.times, path_mm[:, axis], color=colour, label=letter)
    in_time.legend(fontsize=8)
    in_time.set_title(f"{trajectory.profile}: mm over time", fontsize=9)
    in_plane.plot(path_mm[:, 0], path_mm[:, 1], color="0.3")
    in_plane.plot(*path_mm[0, :2], "o", color="0.3")
    in_plane.set_aspect("equal", adjustable="datalim")
    in_plane.invert_yaxis()
    in_plane.set_title("path in the slice, mm", fontsize=9)
    _save(figure, path)


def _busiest_slices(calcium: NDArray[np.uint8]) -> list[int]:
    counts = (calcium > 0).sum(axis=(1, 2))
    busiest = np.argsort(-counts, kind="stable")[:NUM_SLICES_SHOWN]
    return sorted(int(z) for z in busiest if counts[z] > 0)


def _view(calcium: NDArray[np.uint8]) -> tuple[slice, slice]:
    """Rows and columns of a square view around the calcium of one slice."""
    ends = []
    for axis in (0, 1):
        held = np.flatnonzero((calcium > 0).any(axis=1 - axis))
        length = calcium.shape[axis]
        size = min(length, max(VIEW_PX, int(np.ptp(held)) + VIEW_PX // 2))
        start = int(np.clip((held[0] + held[-1]) // 2 - size // 2, 0, length - size))
        ends.append(slice(start, start + size))
    return ends[0], ends[1]


def _save(figure: Any, path: Path) -> None:  # noqa: ANN401
    with replacing(path) as partial:
        figure.savefig(partial, format="png", dpi=80, metadata={"Software": None})
