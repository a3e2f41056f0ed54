"""Pictures of a correction for its report, as PNG inside a data address."""

import base64
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MultipleLocator

from prodm.calcium import CALCIUM_THRESHOLD_HU
from prodm.correction.correct import Corrected, Roi
from prodm.correction.explanation import Explanation
from prodm.volume import Volume

MAX_VIEWS = 6
WINDOW_HU = (-100.0, 500.0)
CONTEXT_WINDOW_HU = (-160.0, 300.0)
DIFFERENCE_HU = 250.0
DPI = 110


@dataclass(frozen=True)
class View:
    """One slice of one block, and its part of the score."""

    roi: Roi
    slice_index: int
    agatston_before: float
    agatston_after: float


def pick_views(corrected: Corrected) -> list[View]:
    """Choose the slices whose score changed most, then those that score most; ascending z."""
    scores: dict[tuple[int, int], list[float]] = {}
    for column, score in enumerate((corrected.before, corrected.after)):
        for lesion in score.lesions:
            place = corrected.volume.grid.index_zyx(lesion.position_xyz_mm)
            number = _roi_with(corrected.rois, place)
            if number is not None:
                entry = scores.setdefault((number, lesion.slice_index), [0.0, 0.0])
                entry[column] += lesion.agatston
    if not scores:
        scores = {
            (n, _fullest_slice(corrected, roi)): [0.0, 0.0] for n, roi in enumerate(corrected.rois)
        }
    order = sorted(
        scores.items(), key=lambda item: (abs(item[1][1] - item[1][0]), max(item[1])), reverse=True
    )
    views = [View(corrected.rois[n], z, *both) for (n, z), both in order[:MAX_VIEWS]]
    return sorted(views, key=lambda view: view.slice_index)


def view_picture(corrected: Corrected, original: Volume, view: View) -> str:
    """Return a picture of place, before, after and difference; lines mark 130 HU."""
    z = view.slice_index
    _, rows, columns = view.roi.window
    before, after = original.hu[z].astype(np.float32), corrected.volume.hu[z].astype(np.float32)
    figure = Figure(figsize=(10.4, 2.75), dpi=DPI, layout="constrained")
    axes = figure.subplots(1, 4)
    aspect = original.spacing_mm[1] / original.spacing_mm[2]
    low, high = CONTEXT_WINDOW_HU
    axes[0].imshow(before, cmap="gray", vmin=low, vmax=high, aspect=aspect)
    axes[0].add_patch(
        Rectangle(
            (columns.start, rows.start),
            columns.stop - columns.start,
            rows.stop - rows.start,
            fill=False,
            edgecolor="#ffb000",
            linewidth=1.2,
        )
    )
    for axis, image in zip(axes[1:3], (before, after), strict=True):
        part = image[rows, columns]
        axis.imshow(part, cmap="gray", vmin=WINDOW_HU[0], vmax=WINDOW_HU[1], aspect=aspect)
        if part.min() < CALCIUM_THRESHOLD_HU <= part.max():
            axis.contour(part, [CALCIUM_THRESHOLD_HU], colors="#ffb000", linewidths=0.7)
    shown = axes[3].imshow(
        (after - before)[rows, columns],
        cmap="RdBu_r",
        vmin=-DIFFERENCE_HU,
        vmax=DIFFERENCE_HU,
        aspect=aspect,
    )
    figure.colorbar(shown, ax=axes[3], shrink=0.8, label="HU")
    for axis, title in zip(axes, ("place", "before", "after", "difference"), strict=True):
        _bare(axis, title)
    return _address(figure)


def curve_picture(explained: Explanation) -> str:
    """Return the curve s(θ) of a motion, in mm."""
    figure = Figure(figsize=(4.4, 1.7), dpi=DPI, layout="constrained")
    axis = figure.subplots()
    axis.axhline(0, color="#5b6875", linewidth=0.8)
    axis.plot(explained.angles_deg, explained.shift_mm, color="#0b62a4", linewidth=1.8)
    reach_mm = max(1.0, 1.15 * explained.largest_mm)
    axis.set_ylim(-reach_mm, reach_mm)
    axis.set_xlim(explained.angles_deg[0], explained.angles_deg[0] + 180)
    axis.xaxis.set_major_locator(MultipleLocator(45))
    axis.set_xlabel("view angle, degrees", fontsize=8)
    axis.set_ylabel("shift, mm", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3)
    return _address(figure)


def _roi_with(rois: tuple[Roi, ...], place: tuple[float, float, float]) -> int | None:
    for number, roi in enumerate(rois):
        if all(s.start - 0.5 <= i < s.stop - 0.5 for s, i in zip(roi.window, place, strict=True)):
            return number
    return None


def _fullest_slice(corrected: Corrected, roi: Roi) -> int:
    counts = corrected.candidates.mask[roi.window].sum(axis=(1, 2))
    return int(roi.window[0].start + counts.argmax())


def _bare(axis: Axes, title: str) -> None:
    axis.set_title(title, fontsize=9)
    axis.set_xticks([])
    axis.set_yticks([])


def _address(figure: Figure) -> str:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
