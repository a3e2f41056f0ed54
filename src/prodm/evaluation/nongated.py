"""Real scans: scores of non-gated COCA scans, before and after correction, against the sheet.

The totals of the sheet are believed to come from gated scans of the same patients. So they are
what a motion-free scan would have scored, up to the reproducibility of the score itself. At
each of three thresholds a scan is positive where the sheet's total reaches it:

    sensitivity   share of the positive scans whose score reaches the threshold
    specificity   share of the others whose score does not
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prodm.errors import ProdmError
from prodm.evaluation.metrics import grade_indices, mean_of, pearson_r
from prodm.evaluation.presentation import Section, Table, markdown, number, with_error
from prodm.evaluation.statistics import bland_altman, confusion, linear_kappa, row_percent
from prodm.runs import write_json, write_run_json

THRESHOLDS = (1, 100, 400)
TITLE = "Non-gated COCA scans against the sheet"


@dataclass(frozen=True)
class Reading:
    """Scores of one scan; ``found`` holds those of each method, "no correction" first."""

    scan: str
    sheet: float
    found: dict[str, float]


def tables_of(readings: Sequence[Reading], problems: Mapping[str, str]) -> dict[str, Any]:
    """Return the agreement of each method's scores with the sheet's."""
    if not readings:
        raise ProdmError("no non-gated scan could be read, scored and found in the sheet")
    true = np.array([reading.sheet for reading in readings])
    rows, matrices = [], {}
    for name in readings[0].found:
        found = np.array([reading.found[name] for reading in readings])
        counts = confusion(true, found)
        error = mean_of(np.abs(found - true))
        right = mean_of((grade_indices(found) == grade_indices(true)).astype(float))
        rows.append(
            {
                "method": name,
                "n": len(readings),
                "grade_accuracy_percent": 100 * right.value,
                "grade_accuracy_percent_se": 100 * right.error,
                "kappa": linear_kappa(counts),
                "agatston_mae": error.value,
                "agatston_mae_se": error.error,
                "bland_altman": asdict(bland_altman(true, found)),
                "pearson_r": pearson_r(true, found),
                "thresholds": [_at_threshold(true, found, edge) for edge in THRESHOLDS],
            }
        )
        matrices[name] = {"counts": counts.tolist(), "percent": row_percent(counts)}
    return {"n": len(readings), "rows": rows, "confusion": matrices, "problems": dict(problems)}


def _at_threshold(true: Any, found: Any, edge: float) -> dict[str, Any]:  # noqa: ANN401
    positive, called = true >= edge, found >= edge
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    return {
        "threshold": edge,
        "positive": num_positive,
        "sensitivity": int((positive & called).sum()) / num_positive if num_positive else None,
        "specificity": int((~positive & ~called).sum()) / num_negative if num_negative else None,
    }


def sections_of(content: dict[str, Any]) -> list[Section]:
    """Return the tables as text."""
    agreement = Table(
        "Agreement with the sheet",
        f"n = {content['n']} scans; ± is the standard error; κ of the grades with linear weights.",
        ("method", "grade accuracy, %", "κ", "Agatston MAE", "bias", "Pearson r"),
        tuple(
            (
                row["method"],
                with_error(row, "grade_accuracy_percent", 1),
                number(row["kappa"], 3),
                with_error(row, "agatston_mae", 2),
                number(row["bland_altman"]["bias"], 2, signed=True),
                number(row["pearson_r"], 3),
            )
            for row in content["rows"]
        ),
    )
    thresholds = Table(
        "Who is found",
        "A scan is positive where the sheet's total reaches the threshold.",
        ("method", "threshold", "sensitivity", "specificity", "positive scans"),
        tuple(
            (
                row["method"],
                f"≥ {part['threshold']}",
                number(part["sensitivity"], 3),
                number(part["specificity"], 3),
                str(part["positive"]),
            )
            for row in content["rows"]
            for part in row["thresholds"]
        ),
        num_words=2,
    )
    tables = [agreement, thresholds]
    if content["problems"]:
        rows = tuple(content["problems"].items())
        tables.append(Table("Left out", "", ("scan", "why"), rows, num_words=2))
    return [Section("Real scans", tuple(tables))]


def write_nongated(
    folder: Path,
    readings: Sequence[Reading],
    content: dict[str, Any],
    settings: Mapping[str, Any],
    inputs: Mapping[str, str],
) -> None:
    """Write tables, scores and figures into an existing folder."""
    from prodm.evaluation.figures import (
        as_image_tag,
        draw_bland_altman,
        draw_confusion,
        save_figure,
    )
    from prodm.evaluation.report import html_page, html_table, provenance

    write_run_json(folder, settings, inputs)
    write_json(folder / "tables.json", content)
    sections = sections_of(content)
    (folder / "tables.md").write_text(markdown(sections, TITLE), encoding="utf-8")
    names = list(readings[0].found)
    with (folder / "scans.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["scan", "sheet", *names])
        writer.writerows([r.scan, r.sheet, *r.found.values()] for r in readings)
    true = np.array([reading.sheet for reading in readings])
    scores = {name: (true, np.array([r.found[name] for r in readings])) for name in names}
    parts = [f"<h1>{TITLE}</h1>", '<p class="quiet">Research use only.</p>']
    parts += [html_table(table) for section in sections for table in section.tables]
    for name, draw in (("confusion", draw_confusion), ("bland-altman", draw_bland_altman)):
        figure = draw(scores)
        save_figure(figure, folder, name)
        parts.append(f"<figure>{as_image_tag(figure, name)}</figure>")
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    parts += ["<h2>How it was made</h2>", provenance(record)]
    (folder / "report.html").write_text(html_page(TITLE, parts), encoding="utf-8")
