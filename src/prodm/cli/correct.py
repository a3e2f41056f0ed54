"""``prodm correct``: a scan, or every scan below a folder, corrected and scored."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prodm.cli.corrected_scan import Options
from prodm.cli.score import RULE_NAMES
from prodm.cli.terminal import progress_bar
from prodm.errors import ProdmError

if TYPE_CHECKING:
    from prodm.files.scans import FoundScan

CSV_COLUMNS = (
    *("scan", "series", "agatston_before", "agatston_after", "interval_low", "interval_high"),
    *("grade_before", "grade_after", "blocks", "seconds", "warnings", "problem", "folder"),
)


@click.command()
@click.argument("scan", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="Folder for the results; it appears when all is written.",
)
@click.option(
    "--region",
    type=click.Path(path_type=Path),
    help="Mask of the heart or the coronary arteries (NIfTI, NRRD, DICOM SEG) on the scan's "
    "grid. Without it the heart is looked for.",
)
@click.option("--series", help="Series UID or number, where a folder holds several.")
@click.option(
    "--method",
    metavar="NAME",
    help="What corrects. prodm: the networks that ship, together; network: one network alone; "
    "phase-net: separator, reader, focuser and the search; phase: the search "
    "without any weights; identity: nothing changes.  [default: prodm; network with --weights]",
)
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    help="Trained network (safetensors), instead of the one that ships.",
)
@click.option(
    "--tissue",
    type=click.Choice(["moving", "still"]),
    default="moving",
    show_default=True,
    help="Whether tissue moves with its calcium, as in patients: calcium is then put where it was "
    "seen on average. In scans of prodm simulate it is still, and tells where calcium belongs.",
)
@click.option("--steps", type=click.IntRange(1), default=4, show_default=True)
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Answers to draw; their spread is the interval.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--rule",
    "rule_name",
    type=click.Choice(RULE_NAMES),
    default="clinical",
    show_default=True,
    help="Named set of scoring rules.",
)
@click.option("--force", is_flag=True, help="Go on where the scan would be refused.")
@click.option("--recursive", is_flag=True, help="Correct every scan below the folder SCAN.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--overwrite", is_flag=True, help="Replace results that exist.")
def correct(
    scan: Path,
    output: Path,
    region: Path | None,
    series: str | None,
    method: str | None,
    weights: Path | None,
    tissue: str,
    steps: int,
    samples: int,
    seed: int,
    rule_name: str,
    force: bool,
    recursive: bool,
    as_json: bool,
    overwrite: bool,
) -> None:
    """Correct the calcium of a chest CT for motion, and score it before and after.

    SCAN is a DICOM folder or file, a zip of one, a NIfTI or an NRRD file. DIR gets the corrected
    scan in the same format, the lesions before and after, result.json and report.html.

    Example: prodm correct scans/0042 -o corrected/0042

    Example: prodm correct cohort -o corrected --recursive
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads must not take the cores
    from prodm.correction import make_corrector

    if recursive and (region or series):
        raise click.UsageError("--region and --series are for one scan")
    if not scan.exists():
        raise ProdmError(f"there is no scan {scan}")
    if scan.is_dir() and output.resolve().is_relative_to(scan.resolve()):
        raise ProdmError(f"results must lie outside the folder of the scan, got {output}")
    method = method or ("prodm" if weights is None else "network")
    corrector = make_corrector(method, weights, tissue_rests=tissue == "still")
    options = Options(
        corrector, method, rule_name, region, weights, tissue, steps, samples, seed, force
    )
    if recursive:
        rows = _correct_below(scan, output, options, overwrite=overwrite)
        if as_json:
            click.echo(json.dumps({"scans": rows}, indent=2, allow_nan=False))
        else:
            _print_rows(rows)
        if all(row.get("problem") for row in rows):
            raise ProdmError(f"none of the {len(rows)} scans could be corrected")
        return
    with progress_bar("blocks") as progress:
        content = _correct_one(scan, series, output, options, progress, overwrite=overwrite)
    if as_json:
        click.echo(json.dumps(content, indent=2, allow_nan=False))
    else:
        _print_result(content, output)
    for warning in content["warnings"]:
        click.echo(f"note: {warning}", err=True)


def _correct_one(
    path: Path,
    series: str | None,
    output: Path,
    options: Options,
    progress: Any,  # noqa: ANN401
    *,
    overwrite: bool,
) -> dict[str, Any]:
    """Correct one scan into a folder that appears only when it is complete."""
    from prodm.cli.corrected_scan import correct_scan, write_result
    from prodm.files.scans import read_scan
    from prodm.runs import new_folder

    with new_folder(output, overwrite=overwrite) as folder:
        scan = read_scan(path, series)
        corrected, region = correct_scan(scan, options, progress)
        return write_result(folder, scan, corrected, region, options)


def _correct_below(
    root: Path, output: Path, options: Options, *, overwrite: bool
) -> list[dict[str, Any]]:
    """Correct every scan below a folder; what fails says why and does not stop the rest."""
    from prodm.files.scans import find_scans

    found = find_scans(root)
    if not found:
        raise ProdmError(f"there is no scan below {root}")
    output.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with progress_bar("scans") as progress:
        for done, entry in enumerate(found):
            progress(done, len(found))
            folder = output / _folder_name(entry, root, found)
            rows.append(_correct_found(entry, folder, options, overwrite=overwrite))
            rows[-1]["scan"] = entry.path.relative_to(root).as_posix()
            _write_csv(output / "summary.csv", rows)
        progress(len(found), len(found))
    return rows


def _folder_name(entry: FoundScan, root: Path, found: list[FoundScan]) -> str:
    """Return one flat name per scan, the same in every run."""
    name = entry.path.relative_to(root).as_posix().replace("/", "__")
    name = "scan" if name == "." else name
    several = sum(other.path == entry.path for other in found) > 1
    return f"{name}__{entry.series[-16:]}" if several and entry.series else name


def _correct_found(
    entry: FoundScan, folder: Path, options: Options, *, overwrite: bool
) -> dict[str, Any]:
    from prodm.runs import no_progress

    row: dict[str, Any] = {"series": entry.series or "", "folder": folder.name}
    try:
        content = None if overwrite else _done_before(folder, options)
        if content is None:
            content = _correct_one(
                entry.path, entry.series, folder, options, no_progress, overwrite=overwrite
            )
    except (ProdmError, OSError, MemoryError) as error:
        return row | {"problem": str(error) or "not enough memory"}
    return row | _row(content)


def _done_before(folder: Path, options: Options) -> dict[str, Any] | None:
    """Return the result of an earlier run with the same settings, or None."""
    path = folder / "result.json"
    if not path.is_file():
        return None
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    same = all(content["settings"].get(key) == v for key, v in options.settings().items())
    if not same or content["model"]["sha256"] != options.corrector.sha256:
        raise ProdmError(
            f"{folder} holds a result of other settings or weights; choose another folder or "
            "add --overwrite"
        )
    return content


def _row(content: dict[str, Any]) -> dict[str, Any]:
    before, after = content["before"], content["after"]
    low, high = after["agatston_interval_90"] or (None, None)
    return {
        "series": content["series"] or "",
        "agatston_before": before["agatston"],
        "agatston_after": after["agatston"],
        "interval_low": low,
        "interval_high": high,
        "grade_before": before["grade"],
        "grade_after": after["grade"],
        "blocks": len(content["rois"]),
        "seconds": content["seconds"],
        "warnings": "; ".join(content["warnings"]),
    }


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    from prodm.runs import replacing

    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, CSV_COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _print_result(content: dict[str, Any], output: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    before, after = content["before"], content["after"]
    table = Table("", "before", "after")
    table.add_row("Agatston", f"{before['agatston']:.1f}", f"{after['agatston']:.1f}")
    if after["agatston_interval_90"] is not None:
        low, high = after["agatston_interval_90"]
        table.add_row("90 % interval", "", f"{low:.1f} to {high:.1f}")
    table.add_row("grade", before["grade"], after["grade"])
    table.add_row("volume mm³", f"{before['volume_mm3']:.1f}", f"{after['volume_mm3']:.1f}")
    table.add_row("lesions", str(len(before["lesions"])), str(len(after["lesions"])))
    console = Console()
    console.print(table)
    if after["grade_probabilities"] is not None:
        shares = after["grade_probabilities"].items()
        likely = ", ".join(f"{name} {share:.0%}" for name, share in shares if share > 0)
        console.print(f"probability of grades: {likely}")
    console.print(f"blocks: {len(content['rois'])}, {content['seconds']:.1f} s", highlight=False)
    click.echo(str(output / "report.html"))


def _print_rows(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("scan", "before", "after", "90 % interval", "grade", "problem")
    for row in rows:
        if row.get("problem"):
            table.add_row(row["scan"], "-", "-", "-", "-", row["problem"])
            continue
        low, high = row["interval_low"], row["interval_high"]
        table.add_row(
            row["scan"],
            f"{row['agatston_before']:.1f}",
            f"{row['agatston_after']:.1f}",
            "-" if low is None else f"{low:.1f} to {high:.1f}",
            row["grade_after"],
            "",
        )
    Console().print(table)
