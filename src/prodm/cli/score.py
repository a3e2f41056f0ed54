"""``prodm score``: Agatston, volume and mass of a scan, or of every scan below a folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prodm.cli.scored import Scored, print_scans, print_score, write_csv
from prodm.cli.terminal import progress_bar
from prodm.errors import ProdmError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prodm.agatston import Rule, Score
    from prodm.files.scans import FoundScan, Scan

RULE_NAMES = ("clinical", "ai-cac", "calciumscoring-jl", "osirix")


@dataclass(frozen=True)
class Options:
    """What a user asked for, apart from the scan."""

    rule: Rule
    region: Path | None
    calibration_mg_per_hu_mm3: float | None
    slice_thickness_mm: float | None
    kvp: float | None


@click.command()
@click.argument("scan", type=click.Path(path_type=Path))
@click.option(
    "--region",
    type=click.Path(path_type=Path),
    help="Mask of the coronary arteries or the heart (NIfTI, NRRD, DICOM SEG) on the scan's "
    "grid. Without it the heart is looked for, and calcium of aorta and valves in it counts.",
)
@click.option("--series", help="Series UID or number, where a folder holds several.")
@click.option(
    "--rule",
    "rule_name",
    type=click.Choice(RULE_NAMES),
    default="clinical",
    show_default=True,
    help="Named set of scoring rules; the next four options change one part of it.",
)
@click.option("--threshold-hu", type=float, help="A pixel is calcium from here on.")
@click.option("--min-area-mm2", type=float, help="Smallest lesion in a slice.")
@click.option(
    "--connectivity",
    type=click.Choice(("diagonal", "edge")),
    help="Whether pixels that meet at a corner belong together.",
)
@click.option(
    "--thickness",
    type=click.Choice(("spacing", "thickness", "none")),
    help="What a slice counts for: its spacing or thickness over 3 mm, or 1.",
)
@click.option(
    "--calibration",
    type=float,
    metavar="MG_PER_HU_MM3",
    help="Calibration factor from a phantom, for the mass in mg.",
)
@click.option("--slice-thickness-mm", type=float, help="Where the scan does not state it.")
@click.option("--kvp", type=float, help="Tube voltage, where the scan does not state it.")
@click.option("--recursive", is_flag=True, help="Score every scan below the folder SCAN.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="Write one row per scan.")
@click.option(
    "--seg", "seg_path", type=click.Path(path_type=Path), help="Write the lesions as DICOM SEG."
)
@click.option(
    "--sr", "sr_path", type=click.Path(path_type=Path), help="Write the score as DICOM SR."
)
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
def score(
    scan: Path,
    region: Path | None,
    series: str | None,
    rule_name: str,
    threshold_hu: float | None,
    min_area_mm2: float | None,
    connectivity: str | None,
    thickness: str | None,
    calibration: float | None,
    slice_thickness_mm: float | None,
    kvp: float | None,
    recursive: bool,
    as_json: bool,
    csv_path: Path | None,
    seg_path: Path | None,
    sr_path: Path | None,
    overwrite: bool,
) -> None:
    """Agatston score of one CT scan, with volume and mass, lesion by lesion.

    SCAN is a DICOM folder or file, a zip of one, a NIfTI or an NRRD file.

    Example: prodm score scans/0042 --region scans/0042-coronaries.nii.gz

    Example: prodm score cohort --recursive --csv scores.csv
    """
    _check_outputs((csv_path, seg_path, sr_path), overwrite=overwrite)
    options = Options(
        _rule(
            rule_name,
            threshold_hu=threshold_hu,
            min_area_mm2=min_area_mm2,
            connectivity=connectivity,
            thickness=thickness,
        ),
        region,
        calibration,
        slice_thickness_mm,
        kvp,
    )
    if recursive:
        if region or series or seg_path or sr_path:
            raise click.UsageError("--region, --series, --seg and --sr are for one scan")
        rows = _score_below(scan, options)
    else:
        rows = [_score_one(scan, series, options, seg_path, sr_path)]
    if csv_path:
        write_csv(csv_path, rows)
    if as_json:
        content = {"scans": [row.to_json() for row in rows]} if recursive else _only(rows)
        click.echo(json.dumps(content, indent=2, allow_nan=False))
    elif recursive:
        print_scans(rows)
    else:
        print_score(rows[0])
    for row in rows:
        for warning in row.warnings:
            click.echo(f"{row.name}: {warning}" if recursive else f"note: {warning}", err=True)
    if all(row.score is None for row in rows):
        raise ProdmError(f"none of the {len(rows)} scans could be scored; the table says why")


def _rule(name: str, **changes: float | str | None) -> Rule:
    """Return the named rule with the given parts changed, and a name that says so."""
    from prodm.agatston import RULES

    given: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
    rule = RULES[name]
    if "threshold_hu" in given:
        given["by_kvp"] = ()
        if rule.by_kvp:
            raise ProdmError(
                f"the rule {name} takes its threshold from the tube voltage; leave out "
                "--threshold-hu or choose another --rule"
            )
    return replace(rule, name=f"{name}, changed", **given) if given else rule


def _check_outputs(paths: tuple[Path | None, ...], *, overwrite: bool) -> None:
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise ProdmError(f"{path} is a folder, and a file is to be written there")
        if path.exists() and not overwrite:
            raise ProdmError(f"{path} exists already; choose another place or add --overwrite")
        if not path.parent.is_dir():
            raise ProdmError(f"there is no folder {path.parent} to write {path.name} into")


def _score_one(
    path: Path, series: str | None, options: Options, seg_path: Path | None, sr_path: Path | None
) -> Scored:
    from prodm.files.scans import read_scan

    scan = read_scan(path, series)
    if (seg_path or sr_path) and not scan.is_dicom:
        raise ProdmError(f"DICOM SEG and SR belong to a DICOM scan, and {path} is not DICOM")
    result, labels, warnings = _score_scan(scan, options)
    if seg_path or sr_path:
        warnings += _write_dicom(scan, result, labels, options, seg_path, sr_path)
    return Scored(str(path), scan.series_uid or "", result, warnings)


def _score_scan(
    scan: Scan, options: Options
) -> tuple[Score, NDArray[np.uint8] | NDArray[np.bool_], tuple[str, ...]]:
    """Return the score, the region and what the user should know of both."""
    from prodm import agatston

    warnings = scan.warnings
    region: NDArray[np.uint8] | NDArray[np.bool_]
    if options.region is not None:
        from prodm.files.masks import read_mask

        region = read_mask(options.region, scan.volume.grid)
    else:
        from prodm.anatomy.heart import find_heart

        heart = find_heart(scan.volume)
        region = heart.mask
        warnings += (agatston.FOUND_REGION_NOTE, *heart.warnings)
    if scan.contrast_agent:
        warnings += ("a contrast agent is noted in the scan; blood may count as calcium",)
    result = agatston.score(
        scan.volume,
        region,
        options.rule,
        region_source="given" if options.region else "found",
        calibration_mg_per_hu_mm3=options.calibration_mg_per_hu_mm3,
        slice_thickness_mm=_given_or(options.slice_thickness_mm, scan.slice_thickness_mm),
        kvp=_given_or(options.kvp, scan.kvp),
    )
    return result, region, warnings


def _given_or(given: float | None, stated: float | None) -> float | None:
    return stated if given is None else given


def _write_dicom(
    scan: Scan,
    result: Score,
    region: NDArray[np.uint8] | NDArray[np.bool_],
    options: Options,
    seg_path: Path | None,
    sr_path: Path | None,
) -> tuple[str, ...]:
    from prodm.agatston import lesion_labels
    from prodm.files.annotations import write_lesion_seg, write_score_report
    from prodm.runs import replacing

    warnings: tuple[str, ...] = ()
    if seg_path:
        kvp = _given_or(options.kvp, scan.kvp)
        labels = lesion_labels(scan.volume, region, options.rule, kvp=kvp)
        if labels.any():
            with replacing(seg_path) as partial:
                write_lesion_seg(
                    scan,
                    labels,
                    partial,
                    description="scored calcium",
                    algorithm=f"Agatston, rule {result.rule.name}",
                )
        else:
            warnings += ("there is no lesion, so no SEG was written",)
    if sr_path:
        with replacing(sr_path) as partial:
            write_score_report(scan, result.to_json(), partial)
    return warnings


def _score_below(root: Path, options: Options) -> list[Scored]:
    """Score every scan below a folder; what fails says why and does not stop the rest."""
    from prodm.files.scans import find_scans

    found = find_scans(root)
    if not found:
        raise ProdmError(f"there is no scan below {root}")
    rows = []
    with progress_bar("scans") as progress:
        for done, entry in enumerate(found):
            progress(done, len(found))
            rows.append(_score_found(entry, root, options))
        progress(len(found), len(found))
    return rows


def _score_found(entry: FoundScan, root: Path, options: Options) -> Scored:
    from prodm.files.scans import read_scan

    name = entry.path.relative_to(root).as_posix()
    try:
        scan = read_scan(entry.path, entry.series)
        result, _, warnings = _score_scan(scan, options)
    except (ProdmError, OSError, MemoryError) as error:
        problem = str(error) or "not enough memory"
        return Scored(name, entry.series or "", problem=problem)
    return Scored(name, scan.series_uid or "", result, warnings)


def _only(rows: list[Scored]) -> dict[str, Any]:
    result = rows[0].score
    if result is None:
        raise ProdmError(rows[0].problem)
    return result.to_json()
