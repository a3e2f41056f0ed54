"""How scored scans are printed and written as a table."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prodm.errors import ProdmError

if TYPE_CHECKING:
    from pathlib import Path

    from prodm.agatston import Score

VESSEL_NAMES = ("LAD", "LCX", "RCA", "LM", "UNSPECIFIED")
CSV_COLUMNS = (
    "scan",
    "series",
    "agatston",
    "grade",
    "volume_mm3",
    "mass_mg",
    "lesions",
    *VESSEL_NAMES,
    "region",
    "rule",
    "warnings",
    "problem",
)


@dataclass(frozen=True)
class Scored:
    """One scan with its score, or with the reason why it has none."""

    name: str
    series: str = ""
    score: Score | None = None
    warnings: tuple[str, ...] = ()
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the scan's name and series, then its score or its problem."""
        content: dict[str, Any] = {"scan": self.name, "series": self.series}
        if self.score is None:
            return content | {"problem": self.problem}
        return content | self.score.to_json()


def write_csv(path: Path, rows: list[Scored]) -> None:
    """Write one row for each scan."""
    from prodm.runs import replacing

    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, CSV_COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(_csv_row(row) for row in rows)


def _csv_row(row: Scored) -> dict[str, Any]:
    content: dict[str, Any] = {"scan": row.name, "series": row.series, "problem": row.problem}
    if row.score is None:
        return content
    return content | {
        "agatston": f"{row.score.agatston:.3f}",
        "grade": row.score.grade,
        "volume_mm3": f"{row.score.volume_mm3:.3f}",
        "mass_mg": "" if row.score.mass_mg is None else f"{row.score.mass_mg:.4f}",
        "lesions": len(row.score.lesions),
        **{name: f"{value:.3f}" for name, value in row.score.per_vessel.items()},
        "region": row.score.region_source,
        "rule": row.score.rule.name,
        "warnings": "; ".join(row.warnings),
    }


def print_score(row: Scored) -> None:
    """Print the lesions of a scan and their sum."""
    from rich.console import Console
    from rich.table import Table

    if row.score is None:
        raise ProdmError(row.problem)
    result, console = row.score, Console()
    lesions = Table("slice", "x, y, z mm", "area mm²", "peak HU", "weight", "vessel", "Agatston")
    for lesion in result.lesions:
        lesions.add_row(
            str(lesion.slice_index),
            ", ".join(f"{value:.0f}" for value in lesion.position_xyz_mm),
            f"{lesion.area_mm2:.2f}",
            f"{lesion.peak_hu:.0f}",
            str(lesion.weight),
            lesion.vessel,
            f"{lesion.agatston:.1f}",
        )
    if result.lesions:
        console.print(lesions)
    total = Table(show_header=False)
    total.add_row("Agatston", f"{result.agatston:.1f} ({result.grade})")
    total.add_row("volume", f"{result.volume_mm3:.1f} mm³")
    mass = "needs --calibration" if result.mass_mg is None else f"{result.mass_mg:.2f} mg"
    total.add_row("mass", mass)
    for vessel, agatston in result.per_vessel.items():
        total.add_row(vessel, f"{agatston:.1f}")
    total.add_row("rule", result.rule.name)
    total.add_row("region", f"{result.region_source}, {result.region_voxels} voxels")
    console.print(total)


def print_scans(rows: list[Scored]) -> None:
    """Print one line for each scan."""
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(
        Column("scan", overflow="fold"),
        "Agatston",
        "grade",
        "volume mm³",
        "lesions",
        "region or problem",
    )
    for row in rows:
        if row.score is None:
            table.add_row(row.name, "-", "-", "-", "-", row.problem)
            continue
        table.add_row(
            row.name,
            f"{row.score.agatston:.1f}",
            row.score.grade,
            f"{row.score.volume_mm3:.1f}",
            str(len(row.score.lesions)),
            row.score.region_source,
        )
    Console().print(table)
