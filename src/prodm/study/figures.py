"""The figures of the report: violins, boxes, and the ranking."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from prodm.study.analysis import ALL_READERS, Analysis, ComparisonRow
from prodm.study.criteria import CRITERIA, SCORES
from prodm.study.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#7a8a93", "#d98e2b", "#0b6b77", "#8059a8", "#b5485d", "#5b8a3a")
PANEL_INCHES = (3.4, 3.8)
MAX_BRACKETS = 3  # more hide the boxes
INK = "#16232b"


def draw_figures(results: Results, analysis: Analysis) -> dict[str, "Figure"]:
    """Return the figures by file name."""
    return {
        "violin": _violins(results),
        "box": _boxes(results, analysis),
        "ranking": _ranking(results, analysis),
    }


def format_p(p_value: float) -> str:
    """Write a p-value as in a paper.

    >>> format_p(0.0004), format_p(0.0312)
    ('p < 0.001', 'p = 0.031')
    """
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def _scores(results: Results, criterion: str) -> list[list[int]]:
    return [
        [
            rating.score
            for rating in results.ratings
            if (rating.criterion, rating.method, rating.is_repeat) == (criterion, method, False)
        ]
        for method in results.methods
    ]


def _panels(num_panels: int, title: str) -> tuple["Figure", list["Axes"]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PANEL_INCHES[0] * num_panels, PANEL_INCHES[1]), layout="constrained")
    figure.suptitle(title, fontsize=11, color=INK)
    axes = figure.subplots(1, num_panels, sharey=True, squeeze=False)[0]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9)
        panel.set_axisbelow(True)
        panel.grid(axis="y", color="#e3e8ea", linewidth=0.8)
    return figure, list(axes)


def _prepare(panel: "Axes", title: str, methods: Sequence[str]) -> None:
    panel.set_title(title, fontsize=10, color=INK)
    panel.set_xticks(range(1, len(methods) + 1), methods)
    panel.set_xlim(0.4, len(methods) + 0.6)


def _violins(results: Results) -> "Figure":
    """Distribution of ratings; the dots say how often each score was given."""
    figure, axes = _panels(len(CRITERIA), "Distribution of ratings")
    for panel, criterion in zip(axes, CRITERIA, strict=True):
        _prepare(panel, criterion.title, results.methods)
        for n, scores in enumerate(_scores(results, criterion.name)):
            colour = COLOURS[n % len(COLOURS)]
            if len(scores) > 1:
                drawn = panel.violinplot([scores], [n + 1], widths=0.8, showextrema=False)
                for body in drawn["bodies"]:  # type: ignore[attr-defined]
                    body.set(facecolor=colour, alpha=0.35, edgecolor=colour)
            for score in SCORES:
                share = scores.count(score) / max(1, len(scores))
                if share:
                    panel.scatter(n + 1, score, s=20 + 260 * share, color=colour, zorder=3)
    axes[0].set_ylabel("Rating", fontsize=10)
    axes[0].set_yticks(SCORES)
    axes[0].set_ylim(0.3, 5.7)
    return figure


def _boxes(results: Results, analysis: Analysis) -> "Figure":
    """Quartiles, mean and standard deviation, and which methods differ."""
    figure, axes = _panels(len(CRITERIA), "Ratings by method: quartiles, mean ± SD")
    highest = 5.0
    for panel, criterion in zip(axes, CRITERIA, strict=True):
        _prepare(panel, criterion.title, results.methods)
        for n, scores in enumerate(_scores(results, criterion.name)):
            if not scores:
                continue
            colour = COLOURS[n % len(COLOURS)]
            panel.boxplot(
                [scores],
                positions=[n + 1],
                widths=0.5,
                patch_artist=True,
                boxprops={"facecolor": colour, "alpha": 0.35, "edgecolor": colour},
                medianprops={"color": colour, "linewidth": 2},
                whiskerprops={"color": colour},
                capprops={"color": colour},
                flierprops={"marker": ".", "markeredgecolor": colour},
                manage_ticks=False,
            )
            spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
            panel.errorbar(
                n + 1.36, float(np.mean(scores)), spread, fmt="D", ms=4, color=INK, capsize=3, lw=1
            )
        rows = [
            row
            for row in analysis.comparisons
            if row.readers == ALL_READERS and row.criterion == criterion.name
        ]
        highest = max(highest, _brackets(panel, results.methods, rows))
    axes[0].set_ylabel("Rating", fontsize=10)
    axes[0].set_yticks(SCORES)
    axes[0].set_ylim(0.5, highest + 0.35)
    return figure


def _brackets(panel: "Axes", methods: Sequence[str], rows: Sequence[ComparisonRow]) -> float:
    """Draw the corrected p-values over pairs of boxes; return the height that they need."""
    if len(rows) > MAX_BRACKETS:
        return 5.0
    height = 5.35
    for row in sorted(rows, key=lambda r: abs(methods.index(r.method) - methods.index(r.other))):
        left, right = sorted((methods.index(row.method) + 1, methods.index(row.other) + 1))
        panel.plot(
            [left + 0.05, left + 0.05, right - 0.05, right - 0.05],
            [height - 0.08, height, height, height - 0.08],
            color=INK,
            lw=0.9,
        )
        panel.text(
            (left + right) / 2, height + 0.04, format_p(row.p_holm), ha="center", va="bottom",
            fontsize=8, color=INK,
        )  # fmt: skip
        height += 0.5
    return height


def _ranking(results: Results, analysis: Analysis) -> "Figure":
    """Share of readings in which each method came first, second, ..."""
    from matplotlib.figure import Figure

    methods = [row.method for row in analysis.ranking]
    figure = Figure(figsize=(7.2, 1.2 + 0.55 * max(1, len(methods))), layout="constrained")
    panel = figure.subplots()
    panel.spines[["top", "right", "left"]].set_visible(False)
    num_places = len(results.methods)
    shades = [f"{0.30 + 0.55 * place / max(1, num_places - 1):.3f}" for place in range(num_places)]
    for y, row in enumerate(reversed(analysis.ranking)):
        total = max(1, sum(row.counts))
        left = 0.0
        for place, count in enumerate(row.counts):
            share = 100 * count / total
            label = f"place {place + 1}" if y == 0 else None
            panel.barh(y, share, left=left, color=shades[place], edgecolor="white", label=label)
            if share >= 8:
                ink = "white" if place < num_places / 2 else INK
                panel.text(
                    left + share / 2, y, f"{share:.0f} %", ha="center", va="center", fontsize=9,
                    color=ink,
                )  # fmt: skip
            left += share
    panel.set_yticks(range(len(methods)), methods[::-1])
    panel.set_xlim(0, 100)
    panel.set_xlabel("Share of readings (%)", fontsize=9)
    panel.tick_params(labelsize=9)
    if methods:
        figure.legend(loc="outside upper center", ncols=num_places, fontsize=9, frameon=False)
    return figure
