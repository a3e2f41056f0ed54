"""One scan through ``prodm correct``: read, region, checks, correction, and all that is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prodm.errors import ProdmError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prodm.agatston import Region, Score
    from prodm.correction import Corrected, Corrector
    from prodm.files.scans import Scan
    from prodm.runs import Progress
    from prodm.volume import Volume

SERIES_DESCRIPTION = "motion-corrected calcium"


@dataclass(frozen=True)
class Options:
    """What a user asked for, apart from the scan."""

    corrector: Corrector
    method: str
    rule_name: str = "clinical"
    region: Path | None = None
    weights: Path | None = None
    tissue: str = "moving"
    steps: int = 10
    samples: int = 8
    seed: int = 0
    force: bool = False

    def settings(self) -> dict[str, Any]:
        """Return what decides the result, besides scan and weights."""
        return {
            "method": self.method,
            "tissue": self.tissue,
            "steps": self.steps,
            "samples": self.samples if self.corrector.draws else 1,
            "seed": self.seed,
            "rule": self.rule_name,
            "region": "given" if self.region else "found",
            "force": self.force,
        }


def correct_scan(scan: Scan, options: Options, progress: Progress) -> tuple[Corrected, Region]:
    """Correct one scan in memory; return the result and the region that was scored."""
    from prodm import agatston
    from prodm.correction import checks, correct

    volume = scan.volume
    warnings = list(scan.warnings)
    warnings += _accept(checks.scan_concerns(volume, options.corrector.num_slices), options)
    region, region_warnings = _region(scan, options)
    concerns = checks.blood_concerns(volume, region > 0, scan.contrast_agent)
    warnings += [*region_warnings, *_accept(concerns, options)]
    if scan.contrast_agent and not concerns:
        warnings.append("a contrast agent is noted in the scan, but the blood does not show it")

    def scorer(volume: Volume, region: Region) -> Score:
        return agatston.score(
            volume,
            region,
            agatston.RULES[options.rule_name],
            region_source="given" if options.region else "found",
            slice_thickness_mm=scan.slice_thickness_mm,
            kvp=scan.kvp,
        )

    corrected = correct(
        volume,
        region,
        options.corrector,
        steps=options.steps,
        samples=options.samples,
        seed=options.seed,
        scorer=scorer,
        progress=progress,
    )
    sampling = corrected.sampling
    resampled = {"finer": list(sampling.finer), "combs": list(sampling.combs)}
    return (
        replace(
            corrected,
            warnings=(*warnings, *corrected.warnings),
            settings=options.settings() | {"sampling": resampled},
        ),
        region,
    )


def _accept(concerns: tuple[str, ...], options: Options) -> list[str]:
    """Refuse for the first concern, or turn all into warnings where the user insists."""
    if concerns and not options.force:
        raise ProdmError(f"{concerns[0]}, or add --force to go on all the same")
    return [f"corrected only because of --force: {concern}" for concern in concerns]


def _region(scan: Scan, options: Options) -> tuple[Region, tuple[str, ...]]:
    from prodm.agatston import FOUND_REGION_NOTE

    if options.region is not None:
        from prodm.correction.checks import region_warnings
        from prodm.files.masks import read_mask

        labels = read_mask(options.region, scan.volume.grid)
        if not labels.any():
            raise ProdmError(f"the region {options.region} is empty; give a mask of the heart")
        return labels, region_warnings(scan.volume, labels > 0)
    from prodm.anatomy.heart import find_heart

    heart = find_heart(scan.volume)
    return heart.mask, (FOUND_REGION_NOTE, *heart.warnings)


def write_result(
    folder: Path, scan: Scan, corrected: Corrected, region: Region, options: Options
) -> dict[str, Any]:
    """Write everything about one corrected scan into an empty folder; return ``result.json``."""
    from prodm.agatston import RULES, lesion_labels
    from prodm.correction.report import report_html
    from prodm.runs import hash_files, write_json, write_run_json

    content = {"scan": str(scan.path), "series": scan.series_uid} | corrected.to_json()
    rule = RULES[options.rule_name]
    masks = [
        lesion_labels(volume, region, rule, kvp=scan.kvp)
        for volume in (scan.volume, corrected.volume)
    ]
    written = _write_images(folder, scan, corrected)
    written += _write_annotations(folder, scan, corrected, masks, content)
    write_json(folder / "result.json", content)
    html = report_html(corrected, scan.volume, _about(scan, options, corrected, written))
    (folder / "report.html").write_text(html, encoding="utf-8")
    inputs = {str(scan.path): hash_files(scan.files)}
    if options.region is not None and options.region.is_file():
        inputs[str(options.region)] = hash_files([options.region])
    if corrected.model_sha256 is not None:
        inputs[corrected.model_name] = corrected.model_sha256
    write_run_json(folder, corrected.settings, inputs)
    return content


def _write_images(folder: Path, scan: Scan, corrected: Corrected) -> list[str]:
    """Write the corrected scan in the format of the input."""
    if scan.is_dicom:
        from prodm.files.derived import write_derived_series

        settings = corrected.settings | {"model": corrected.model_name}
        write_derived_series(
            scan,
            corrected.volume,
            folder / "corrected",
            description=SERIES_DESCRIPTION,
            settings=settings | {"sha256": corrected.model_sha256},
        )
        return ["corrected (a DICOM series)"]
    from prodm.files.nifti import write_nifti, write_nrrd

    volume = _with_stored_values(scan, corrected.volume)
    if scan.format == "nrrd":
        write_nrrd(folder / "corrected.nrrd", volume)
        return ["corrected.nrrd"]
    name = "corrected.nii.gz" if scan.path.name.endswith(".gz") else "corrected.nii"
    write_nifti(folder / name, volume)
    return [name]


def _with_stored_values(scan: Scan, corrected: Volume) -> Volume:
    """Return the corrected volume with the file's own values where nothing changed.

    Padding far below air was read as air; it goes back as it was.
    """
    import numpy as np

    from prodm.files.nifti import read_nifti_array, read_nrrd_array
    from prodm.volume import Volume

    read = read_nrrd_array if scan.format == "nrrd" else read_nifti_array
    values, grid = read(scan.path)[:2]
    stored = Volume(np.ascontiguousarray(values, dtype=corrected.hu.dtype), grid).to_lps()
    return corrected.with_hu(np.where(corrected.hu == scan.volume.hu, stored.hu, corrected.hu))


def _write_annotations(
    folder: Path,
    scan: Scan,
    corrected: Corrected,
    masks: list[NDArray[np.uint8]],
    content: dict[str, Any],
) -> list[str]:
    """Write the lesions before and after, and for DICOM the structured report."""
    from prodm.files.annotations import write_lesion_seg, write_score_report
    from prodm.files.nifti import write_nifti_mask

    written = []
    for when, labels in zip(("before", "after"), masks, strict=True):
        if not scan.is_dicom:
            write_nifti_mask(folder / f"lesions-{when}.nii.gz", labels, scan.volume.grid)
            written.append(f"lesions-{when}.nii.gz")
        elif write_lesion_seg(
            scan,
            labels,
            folder / f"lesions-{when}.dcm",
            description=f"calcium {when} correction",
            algorithm=f"Agatston, rule {corrected.after.rule.name}",
        ):
            written.append(f"lesions-{when}.dcm (SEG)")
    if scan.is_dicom:
        spread = corrected.spread
        write_score_report(
            scan,
            content["after"],
            folder / "score.dcm",
            description="calcium score, corrected",
            interval=None if spread is None else spread.interval_90,
            model=f"{corrected.model_name} {corrected.model_sha256 or ''}".strip(),
        )
        written.append("score.dcm (SR)")
    return written


def _about(scan: Scan, options: Options, corrected: Corrected, written: list[str]) -> Any:  # noqa: ANN401
    from prodm.correction.report import About

    sampling = corrected.sampling
    steps = [f"Written beside this report: {', '.join(written)}."]
    if not sampling.is_native:
        dz, dy, _ = sampling.spacing_mm(scan.volume.spacing_mm)
        steps.append(
            f"The model saw slices {dz:.3g} mm apart with pixels of {dy:.3g} mm; the result is at "
            "the scan's own spacing, and nothing was smoothed on the way back."
        )
    left_out = []
    if not options.region:
        left_out.append(
            "The vessels were not told apart: the region is the heart as found by prodm."
        )
    region = f"given in {options.region}" if options.region else "the heart, found by prodm"
    return About(scan.path.name, region, tuple(steps), tuple(left_out))
