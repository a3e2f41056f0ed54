"""The figures of a comparison, ready for a paper: labelled, and readable in grey."""

import base64
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from prodm.calcium import GRADES
from prodm.evaluation.comparison import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Scores = dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]  # method: (true, found)

INK = "#16232b"
SHADES = ("#d9d9d9", "#969696", "#525252", "#bdbdbd", "#737373", "#252525")
HATCHES = ("", "", "", "///", "...", "")
WINDOW_HU = (-200, 500)
MOST_COLUMNS = 4
OUTLIER = 4.0  # times as far off as no correction: such a method must not squeeze the others


def draw_figures(comparison: Comparison) -> dict[str, "Figure"]:
    """Return the figures by file name; those without data are left out."""
    figures: dict[str, Figure] = {}
    if comparison.examples:
        figures["samples"] = draw_samples(comparison)
    for level in ("patch", "scan"):
        cases = comparison.patches if level == "patch" else comparison.scans
        if not cases:
            continue
        scores = _scores(comparison, level)
        figures[f"confusion-{level}"] = draw_confusion(scores)
        figures[f"bland-altman-{level}"] = draw_bland_altman(scores)
    if comparison.patches:
        figures["profiles"] = draw_profiles(comparison)
    return figures


def save_figure(figure: "Figure", folder: Path, name: str) -> None:
    """Write a figure as PDF and PNG; the same figure always gives the same bytes."""
    for kind in ("pdf", "png"):
        (folder / f"{name}.{kind}").write_bytes(rendered(figure, kind))


def rendered(figure: "Figure", kind: str) -> bytes:
    """Return a figure as the bytes of a PDF, PNG or SVG file."""
    import matplotlib as mpl

    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "prodm", "svg.fonttype": "path", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=kind, dpi=200, metadata=undated[kind])
    return buffer.getvalue()


def as_image_tag(figure: "Figure", title: str) -> str:
    """Return a figure as an HTML image that needs no other file."""
    from html import escape

    data = base64.b64encode(rendered(figure, "svg")).decode()
    return f'<img alt="{escape(title)}" src="data:image/svg+xml;base64,{data}">'


def draw_samples(comparison: Comparison) -> "Figure":
    """Draw one patch per motion family: still, and as each method gives it back, with SSIM."""
    names = [results.method.name for results in comparison.results]
    examples = comparison.examples
    figure, axes = _grid(len(examples), len(names) + 1, (1.7, 1.95))
    for row, example in zip(axes, examples, strict=True):
        images = [example.still, *(example.images[name] for name in names)]
        captions = ["still", *(f"SSIM {example.ssim[name]:.4f}" for name in names)]
        for panel, image, caption in zip(row, images, captions, strict=True):
            panel.imshow(image, cmap="gray", vmin=WINDOW_HU[0], vmax=WINDOW_HU[1])
            panel.set_xticks([])
            panel.set_yticks([])
            panel.set_xlabel(caption, fontsize=8, color=INK)
        row[0].set_ylabel(example.case.profile, fontsize=8, color=INK)
    for panel, title in zip(axes[0], ["ground truth", *names], strict=True):
        panel.set_title(_wrapped(title), fontsize=9, color=INK)
    return figure


def draw_confusion(scores: Scores) -> "Figure":
    """Draw the confusion of grades of each method, in per cent of the true grade."""
    from prodm.evaluation.statistics import confusion, row_percent

    figure, panels = _panels(len(scores), (3.3, 3.2))
    for panel, (name, (true, found)) in zip(panels, scores.items(), strict=True):
        counts = confusion(true, found)
        percents = row_percent(counts)
        shown = np.array([[0.0 if v is None else v for v in row] for row in percents])
        panel.imshow(shown, cmap="Greys", vmin=0, vmax=100)
        for (y, x), value in np.ndenumerate(shown):
            if percents[y][x] is None:
                continue
            panel.text(
                x, y, f"{value:.1f}", ha="center", va="center", fontsize=8,
                color="white" if value > 55 else INK,
            )  # fmt: skip
        labels = [
            f"{grade}\n(n = {n})" for grade, n in zip(GRADES, counts.sum(axis=1), strict=True)
        ]
        panel.set_xticks(range(len(GRADES)), GRADES, rotation=35, ha="right", fontsize=8)
        panel.set_yticks(range(len(GRADES)), labels, fontsize=8)
        panel.set_xlabel("grade found", fontsize=9)
        panel.set_ylabel("true grade", fontsize=9)
        panel.set_title(_wrapped(name), fontsize=10, color=INK)
    return figure


def draw_bland_altman(scores: Scores) -> "Figure":
    """Draw score minus true score over their mean, with bias and limits of agreement."""
    from prodm.evaluation.statistics import bland_altman

    agreements = {name: bland_altman(true, found) for name, (true, found) in scores.items()}
    widest = {name: max(abs(a.low), abs(a.high)) for name, a in agreements.items()}
    common = [w for w in widest.values() if w <= OUTLIER * next(iter(widest.values()))]
    reach = 1.6 * max(common) or 1.0
    figure, panels = _panels(len(scores), (3.3, 3.0))
    for panel, (name, (true, found)) in zip(panels, scores.items(), strict=True):
        agreement = agreements[name]
        panel.plot((true + found) / 2, found - true, "o", ms=3, color=INK, alpha=0.35, mew=0)
        for value, style, what in (
            (agreement.bias, "-", "bias"),
            (agreement.low, "--", "−1.96 sd"),
            (agreement.high, "--", "+1.96 sd"),
        ):
            panel.axhline(value, color=INK, ls=style, lw=1)
            text = f"{what} {value:+.1f}".replace("-", "−")
            panel.annotate(
                text, (1, value), xycoords=("axes fraction", "data"),
                xytext=(-2, 2), textcoords="offset points", ha="right", va="bottom", fontsize=7,
            )  # fmt: skip
        title = name
        if widest[name] in common:
            panel.set_ylim(-reach, reach)
        else:
            title += " (own scale)"
        panel.set_xscale("symlog", linthresh=10)
        panel.set_xlim(0, 3 * max(10.0, float((true + found).max()) / 2))
        panel.set_xlabel("mean of score and true score", fontsize=8)
        panel.set_ylabel("score − true score", fontsize=8)
        panel.set_title(_wrapped(title), fontsize=10, color=INK)
        panel.tick_params(labelsize=8)
        _bare(panel)
    return figure


def draw_profiles(comparison: Comparison) -> "Figure":
    """Draw the Agatston error by motion profile, a bar for each method."""
    from matplotlib.figure import Figure

    profiles = sorted({case.profile for case in comparison.patches})
    num_methods = len(comparison.results)
    height = 1.0 + len(profiles) * max(0.3, 0.11 * num_methods)
    figure = Figure(figsize=(6.4, height), layout="constrained")
    panel = figure.subplots()
    thickness = 0.84 / num_methods
    limit = 0.0
    bars = []
    for n, results in enumerate(comparison.results):
        means, errors = [], []
        for profile in profiles:
            values = [
                outcome.absolute_error
                for outcome, case in zip(results.patches, comparison.patches, strict=True)
                if case.profile == profile
            ]
            means.append(float(np.mean(values)))
            spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            errors.append(spread / math.sqrt(len(values)))
        places = np.arange(len(profiles)) + (n - (num_methods - 1) / 2) * thickness
        highest = max(mean + error for mean, error in zip(means, errors, strict=True))
        if n == 0 or highest <= OUTLIER * limit:
            limit = max(limit, highest)
        panel.barh(
            places, means, thickness, xerr=errors, label=results.method.name,
            color=SHADES[n % len(SHADES)], hatch=HATCHES[n % len(HATCHES)], edgecolor="black",
            linewidth=0.5, error_kw={"lw": 0.7, "ecolor": INK},
        )  # fmt: skip
        bars.append((places, means))
    for places, means in bars:
        for place, mean in zip(places, means, strict=True):
            if mean > 1.05 * limit:
                panel.text(
                    1.04 * limit, place, f"{mean:.0f} ▸", ha="right", va="center", fontsize=7,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
                )  # fmt: skip
    if limit > 0:
        panel.set_xlim(0, 1.05 * limit)
    panel.set_yticks(range(len(profiles)), profiles, fontsize=8)
    panel.set_ylim(len(profiles) - 0.5, -0.5)
    panel.set_xlabel("Agatston MAE ± standard error", fontsize=9)
    panel.tick_params(axis="x", labelsize=8)
    _bare(panel)
    figure.legend(loc="outside upper center", ncols=min(num_methods, 3), fontsize=8, frameon=False)
    return figure


CURVES = (
    ("agatston_mae", "Agatston MAE"),
    ("grade_accuracy_percent", "grade accuracy, %"),
    ("dice_loss", "Dice loss"),
    ("pearson_r", "Pearson r"),
)


def draw_curves(
    symbol: str, values: Sequence[float], rows: Sequence[dict[str, Any]], start: dict[str, Any]
) -> "Figure":
    """Draw the paper's four metrics over one setting; ``start`` is the row of no correction."""
    figure, panels = _panels(len(CURVES), (3.0, 2.6))
    places = range(len(values))
    best: dict[str, Callable[[Any], Any]] = {
        "agatston_mae": np.nanargmin,
        "dice_loss": np.nanargmin,
        "grade_accuracy_percent": np.nanargmax,
        "pearson_r": np.nanargmax,
    }
    for panel, (name, title) in zip(panels, CURVES, strict=True):
        heights = [math.nan if row[name] is None else row[name] for row in rows]
        errors = [row.get(f"{name}_se") or 0.0 for row in rows]
        panel.errorbar(places, heights, errors, fmt="o-", ms=4, lw=1, capsize=2, color=INK)
        if np.isfinite(heights).any():
            n = int(best[name](heights))
            panel.plot([n], [heights[n]], "o", ms=11, mfc="none", mec=INK, mew=1.2)
        if start[name] is not None:
            panel.axhline(start[name], color="#737373", ls=":", lw=1)
            panel.annotate(
                "no correction", (0, start[name]), xycoords=("axes fraction", "data"),
                xytext=(2, 2), textcoords="offset points", fontsize=7, color="#525252",
            )  # fmt: skip
        panel.set_xticks(places, [f"{value:g}" for value in values], fontsize=8)
        panel.set_xlabel(symbol, fontsize=9)
        panel.set_title(title, fontsize=10, color=INK)
        panel.tick_params(axis="y", labelsize=8)
        panel.margins(x=0.12, y=0.2)
        _bare(panel)
    return figure


def _scores(comparison: Comparison, level: str) -> Scores:
    scores = {}
    for results in comparison.results:
        outcomes = results.patches if level == "patch" else results.scans
        true = np.array([outcome.agatston_true for outcome in outcomes])
        found = np.array([outcome.agatston_predicted for outcome in outcomes])
        scores[results.method.name] = (true, found)
    return scores


def _grid(
    num_rows: int, num_columns: int, panel_inches: tuple[float, float]
) -> tuple["Figure", Any]:
    from matplotlib.figure import Figure

    width, height = panel_inches
    figure = Figure(figsize=(width * num_columns, height * num_rows), layout="constrained")
    return figure, figure.subplots(num_rows, num_columns, squeeze=False)


def _panels(count: int, panel_inches: tuple[float, float]) -> tuple["Figure", list["Axes"]]:
    """Return a figure with ``count`` panels in rows of at most four."""
    num_rows = math.ceil(count / MOST_COLUMNS)
    num_columns = math.ceil(count / num_rows)
    figure, axes = _grid(num_rows, num_columns, panel_inches)
    for unused in axes.flat[count:]:
        unused.set_visible(False)
    return figure, list(axes.flat[:count])


def _bare(panel: "Axes") -> None:
    panel.spines[["top", "right"]].set_visible(False)


def _wrapped(name: str, width: int = 28) -> str:
    """Break a long name so that it fits over a panel."""
    return "\n".join(name[n : n + width] for n in range(0, len(name), width))
