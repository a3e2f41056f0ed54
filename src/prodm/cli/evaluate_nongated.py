"""Real scans for ``prodm evaluate``: the non-gated half of COCA, scan by scan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from prodm.cli.terminal import progress_bar
from prodm.errors import ProdmError

if TYPE_CHECKING:
    from pathlib import Path

    from prodm.evaluation.methods import Method
    from prodm.evaluation.nongated import Reading
    from prodm.evaluation.presentation import Table
    from prodm.files.coca import CocaPatient


def evaluate_nongated(
    folder: Path, root: Path, methods: list[Method], settings: dict[str, Any]
) -> tuple[dict[str, Any], Table]:
    """Correct and score every usable scan, write the comparison, return tables and headline."""
    from prodm.cli.evaluate import hashes
    from prodm.evaluation.nongated import sections_of, tables_of, write_nongated
    from prodm.files.coca import list_patients
    from prodm.runs import hash_files

    patients = [patient for patient in list_patients(root) if not patient.gated]
    readings: list[Reading] = []
    problems: dict[str, str] = {}
    with progress_bar("scans corrected") as progress:
        for done, patient in enumerate(patients):
            progress(done, len(patients))
            try:
                readings.append(_read(patient, methods, settings))
            except ProdmError as error:
                problems[patient.id] = str(error)
                click.echo(f"{patient.id}: {error}", err=True)
    content = tables_of(readings, problems)
    sheets = sorted(root.rglob("scores.xlsx"))
    inputs = {"scores.xlsx": hash_files(sheets), **hashes(methods)}
    write_nongated(folder, readings, content, {"coca_root": str(root), **settings}, inputs)
    return content, sections_of(content)[0].tables[0]


def _read(patient: CocaPatient, methods: list[Method], settings: dict[str, Any]) -> Reading:
    """Score one scan as it is and as each method corrects it."""
    from prodm.anatomy.heart import find_heart
    from prodm.correction import correct
    from prodm.evaluation.methods import MethodCorrector
    from prodm.evaluation.nongated import Reading
    from prodm.files.coca import read_nongated

    sheet = patient.sheet
    problem = patient.sheet_problem or (sheet.problem if sheet else "no row for it in the sheet")
    if sheet is None or sheet.total is None or problem:
        raise ProdmError(problem or "the sheet states no total")
    scan = read_nongated(patient)
    region = find_heart(scan.volume).mask
    found = {}
    for method in methods:
        result = correct(
            scan.volume,
            region,
            MethodCorrector(method),
            steps=None,
            samples=settings["samples"],
            seed=settings["seed"],
        )
        found[method.name] = result.after.agatston
    return Reading(patient.id, sheet.total, found)
