"""``prodm coca``: what is usable in a COCA tree."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from prodm.cli.terminal import progress_bar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prodm.files.coca import CocaRow
    from prodm.files.scans import Scan

HEADER = ("id", "kind", "usable", "slices", "spacing mm", "by ROIs", "score", "sheet", "remark")


@click.command()
@click.argument("root", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--scores/--no-scores",
    default=True,
    show_default=True,
    help="Score the drawn calcium from the pixels; without, only headers are read.",
)
@click.option(
    "--missing-xml-is-zero",
    is_flag=True,
    help="Take gated patients without an annotation as free of calcium.",
)
def coca(root: Path, as_json: bool, scores: bool, missing_xml_is_zero: bool) -> None:
    """List what is usable in a COCA tree, patient by patient, with problems and scores.

    ROOT is the folder cocacoronarycalciumandchestcts-2, its parent, or one of its halves
    Gated_release_final and deidentified_nongated.

    Example: prodm coca cocacoronarycalciumandchestcts-2 --json > coca.json
    """
    from prodm.files.coca import list_patients, survey

    with progress_bar("COCA patients") as progress:
        rows = survey(
            list_patients(root),
            _score if scores else None,
            missing_xml_is_zero=missing_xml_is_zero,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps({"patients": [asdict(row) for row in rows]}, indent=2))
    else:
        click.echo(_table(rows))
    click.echo(_summary(rows), err=True)


def _score(scan: Scan, labels: NDArray[np.uint8]) -> tuple[float, dict[str, float]]:
    from prodm.agatston import score

    result = score(scan.volume, labels)
    return result.agatston, dict(result.per_vessel)


def _table(rows: list[CocaRow]) -> str:
    lines = [HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cells(row: CocaRow) -> tuple[str, ...]:
    spacing = " x ".join(f"{value:.3g}" for value in row.spacing_mm) if row.spacing_mm else "-"
    return (
        row.id,
        "gated" if row.gated else "non-gated",
        "yes" if row.usable else "no",
        "-" if row.slices is None else str(row.slices),
        spacing,
        *(_number(value) for value in (row.agatston_rois, row.agatston, row.sheet_total)),
        row.problem or "; ".join(row.notes),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _summary(rows: list[CocaRow]) -> str:
    parts = []
    for gated, kind in ((True, "gated"), (False, "non-gated")):
        group = [row for row in rows if row.gated is gated]
        if group:
            parts.append(f"{sum(row.usable for row in group)} of {len(group)} {kind}")
    return "usable: " + ", ".join(parts)
