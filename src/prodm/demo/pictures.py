"""The demo in pictures: the same place of each patient before, corrected, and in truth."""

import base64
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from prodm.calcium import CALCIUM_THRESHOLD_HU, grade
from prodm.demo.patients import Outcome

WINDOW_HU = (-150.0, 420.0)
DPI = 100
BACKGROUND, INK, SOFT, MARK = "#10151b", "#f2f5f8", "#a9b4c0", "#ffb000"
ROWS = ("moving", "corrected", "truth")
SCALE_BAR_MM = 10.0
NOTE = (
    "Agatston scores, with the 90 % interval in brackets. Lines: 130 HU in the heart. "
    "Bar: 10 mm. Made-up patients, chosen before any result was seen. Research use only."
)


def save_picture(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Draw one column per patient: moving, corrected and still, with their scores."""
    side, left, top = 2.9, 0.55, 0.95  # inches: of a panel, and beside and above the panels
    gap, line = 0.08, 0.34  # between panels, and for the score below each
    width = left + len(outcomes) * (side + gap) + gap
    height = top + len(ROWS) * (side + line) + 0.42
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor=BACKGROUND)
    for column, outcome in enumerate(outcomes):
        x = left + column * (side + gap)
        _write(figure, x + side / 2, 0.36, grade(outcome.still), INK, 17, weight="bold")
        _write(figure, x + side / 2, 0.68, _motion(outcome), SOFT, 12)
        for row, (image, text) in enumerate(zip(outcome.views, _captions(outcome), strict=True)):
            y = top + row * (side + line)
            panel = figure.add_axes(
                (x / width, 1 - (y + side) / height, side / width, side / height)
            )
            _show(panel, image, outcome)
            _write(figure, x + side / 2, y + side + 0.15, text, INK, 13)
    for row, name in enumerate(ROWS):
        y = top + row * (side + line) + side / 2
        _write(figure, left / 2, y, name, INK, 15, weight="bold", rotation=90)
    _write(figure, width / 2, height - 0.18, NOTE, SOFT, 11)
    figure.savefig(path, format="png", facecolor=BACKGROUND, metadata={"Software": None})


def row_picture(outcome: Outcome) -> str:
    """Return one patient's three views side by side, as a PNG inside a data address."""
    figure = Figure(figsize=(9.0, 3.0), dpi=DPI, facecolor=BACKGROUND)
    for column, (image, name) in enumerate(zip(outcome.views, ROWS, strict=True)):
        panel = figure.add_axes((column / 3 + 0.004, 0.008, 1 / 3 - 0.008, 0.984))
        _show(panel, image, outcome)
        panel.text(0.03, 0.97, name, transform=panel.transAxes, color=INK, fontsize=12, va="top")
    buffer = BytesIO()
    figure.savefig(buffer, format="png", facecolor=BACKGROUND, metadata={"Software": None})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _show(panel: Axes, image: NDArray[np.float32], outcome: Outcome) -> None:
    """Show a view, with lines around what reaches 130 HU inside the heart."""
    low, high = WINDOW_HU
    panel.imshow(image, cmap="gray", vmin=low, vmax=high, interpolation="bicubic", aspect="auto")
    counted = np.where(outcome.heart, image, np.minimum(image, 0))
    if counted.min() < CALCIUM_THRESHOLD_HU <= counted.max():
        panel.contour(counted, [CALCIUM_THRESHOLD_HU], colors=MARK, linewidths=0.9)
    rows, columns = image.shape
    y, x = 0.95 * rows, 0.05 * columns
    panel.plot([x, x + SCALE_BAR_MM / outcome.view_pixel_mm], [y, y], color=INK, linewidth=2)
    panel.set_xlim(-0.5, columns - 0.5)
    panel.set_ylim(rows - 0.5, -0.5)
    panel.set_axis_off()


def _captions(outcome: Outcome) -> tuple[str, str, str]:
    corrected = f"{outcome.corrected:.0f} {grade(outcome.corrected)}"
    if outcome.interval_90 is not None:
        low, high = outcome.interval_90
        corrected += f" [{low:.0f} to {high:.0f}]"
    return (
        f"{outcome.moving:.0f} {grade(outcome.moving)}",
        corrected,
        f"{outcome.still:.0f} {grade(outcome.still)}",
    )


def _motion(outcome: Outcome) -> str:
    if outcome.largest_shift_mm == 0:
        return "no calcium, nothing moves"
    return f"{outcome.case.profile}, {outcome.largest_shift_mm:.0f} mm"


def _write(
    figure: Figure,
    x: float,
    y: float,
    text: str,
    color: str,
    size: float,
    *,
    weight: str = "normal",
    rotation: float = 0,
) -> None:
    """Write text with its middle at inches from the left and from the top."""
    width, height = figure.get_size_inches()
    figure.text(
        x / width,
        1 - y / height,
        text,
        color=color,
        fontsize=size,
        fontweight=weight,
        rotation=rotation,
        ha="center",
        va="center",
    )
