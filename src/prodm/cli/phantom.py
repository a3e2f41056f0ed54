"""``prodm phantom``: still chest scans with labelled calcium."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prodm.cli.terminal import progress_bar

if TYPE_CHECKING:
    from prodm.agatston import Score
    from prodm.anatomy.phantom import Phantom

LAYOUTS = ("nifti", "dicom", "coca")


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="Folder to write.",
)
@click.option("--count", type=click.IntRange(1), default=4, show_default=True)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of the first phantom; the others follow one by one.",
)
@click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    default="nifti",
    show_default=True,
    help="NIfTI files, DICOM series with NIfTI masks, or a tree like the COCA data set.",
)
@click.option(
    "--settings",
    "settings_path",
    type=click.Path(path_type=Path),
    metavar="TOML",
    help="Ranges to draw from, instead of the usual ones.",
)
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True)
@click.option("--overwrite", is_flag=True, help="Replace DIR if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def phantom(
    output: Path,
    count: int,
    seed: int,
    layout: str,
    settings_path: Path | None,
    workers: int,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Make still chest scans with labelled coronary calcium.

    Each scan comes with its calcium by vessel (1 LAD, 2 LCX, 3 RCA, 4 LM), a mask of the heart,
    and a JSON file of its plaques and its Agatston score. A seed always gives the same scan.

    Example: prodm phantom -o phantoms --count 4 --layout dicom
    """
    from dataclasses import asdict

    from prodm.anatomy.phantom import PhantomSettings
    from prodm.runs import fill, new_folder, read_settings, write_run_json

    values = read_settings(settings_path) if settings_path else {}
    settings = fill(PhantomSettings, values, str(settings_path))
    with new_folder(output, overwrite=overwrite) as folder:
        truths = []
        jobs = [(folder, number, layout, settings) for number in range(seed, seed + count)]
        with progress_bar("phantoms") as progress:
            progress(0, count)
            for truth in _run(jobs, workers):
                truths.append(truth)
                progress(len(truths), count)
        recorded = {"count": count, "seed": seed, "layout": layout, "phantom": asdict(settings)}
        write_run_json(folder, recorded)
    click.echo(json.dumps({"phantoms": truths}, indent=2) if as_json else _table(truths))
    click.echo(f"{count} phantoms in {output}", err=True)


def _run(jobs: list[Any], workers: int) -> Any:  # noqa: ANN401
    if workers == 1:
        yield from map(_make, jobs)
        return
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(min(workers, len(jobs))) as pool:
        yield from pool.map(_make, jobs)


def _make(job: tuple[Path, int, str, Any]) -> dict[str, Any]:
    """Make one phantom, write it, and return its truth."""
    from prodm import agatston
    from prodm.anatomy.phantom import make_phantom
    from prodm.files.coca_writer import write_gated
    from prodm.files.nifti import write_nifti, write_nifti_mask
    from prodm.files.synthetic import write_ct_series
    from prodm.runs import write_json

    folder, seed, layout, settings = job
    made = make_phantom(seed, settings)
    grid = made.still.grid
    if layout == "coca":
        write_gated(folder, str(seed), made.still, made.calcium)
    elif layout == "dicom":
        fwhm_mm = made.acquisition.psf_fwhm_mm
        write_ct_series(folder / made.patient, made.still, made.patient, psf_fwhm_mm=fwhm_mm)
    else:
        write_nifti(folder / f"{made.patient}.nii.gz", made.still)
    if layout != "coca":
        write_nifti_mask(folder / f"{made.patient}_calcium.nii.gz", made.calcium, grid)
        write_nifti_mask(folder / f"{made.patient}_heart.nii.gz", made.heart.astype("u1"), grid)
    truth = _truth(made, agatston.score(made.still, made.calcium))
    write_json(folder / f"{made.patient}.json", truth)
    return truth


def _truth(made: Phantom, score: Score) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "patient": made.patient,
        "seed": made.seed,
        "shape": list(made.still.shape),
        "spacing_mm": list(made.still.spacing_mm),
        "acquisition": asdict(made.acquisition),
        "plaques": [plaque.to_json() for plaque in made.plaques],
        "score": score.to_json(),
    }


def _table(truths: list[dict[str, Any]]) -> str:
    header = ("patient", "voxels z y x", "spacing mm", "plaques", "lesions", "Agatston", "grade")
    rows = [header]
    for truth in truths:
        score = truth["score"]
        rows.append(
            (
                truth["patient"],
                " ".join(str(n) for n in truth["shape"]),
                " ".join(f"{s:.3g}" for s in truth["spacing_mm"]),
                str(len(truth["plaques"])),
                str(len(score["lesions"])),
                f"{score['agatston']:.1f}",
                score["grade"],
            )
        )
    widths = [max(len(row[n]) for row in rows) for n in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
