"""The Stanford COCA data set: gated scans with drawn calcium, non-gated ones with scores.

``list_patients`` says who is there, ``survey`` what is usable, ``read_gated`` and
``read_nongated`` give the scans. ``prodm.files.coca_tree`` shows the folders.

The release has known faults: patients with two series, annotations without images, masks on
the wrong series. Each is named, that patient is skipped, and the rest goes on; nothing is
guessed. A gated patient is usable when one series of axial slices matches its annotation by z
and by value; a non-gated one when one series matches a row of the sheet that adds up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from prodm.calcium import CALCIUM_THRESHOLD_HU, Vessel
from prodm.errors import ProdmError
from prodm.files.coca_slices import CocaSlices, read_slices
from prodm.files.coca_tree import (
    SHEET_NAME,
    XML_FOLDER,
    CocaPatient,
    find_patient,
    is_coca,
    list_patients,
)
from prodm.files.coca_xml import SAME_Z_MM, Roi, agatston_of_fields, pixels_inside, read_rois
from prodm.files.scans import Scan, read_scan
from prodm.runs import Progress, no_progress
from prodm.volume import Volume

__all__ = [
    "CocaPatient",
    "CocaRow",
    "find_patient",
    "is_coca",
    "list_patients",
    "read_gated",
    "read_nongated",
    "survey",
]

MAX_STRAY_FRACTION = 0.1  # of the area drawn: more that is not on calcium is a bad mask
SAME_PEAK_HU = 2.0
SAME_COUNT_FRACTION = 0.25
SAME_COUNT_PIXELS = 3

Labels = NDArray[np.uint8]  # [Z, Y, X], values of Vessel
Scorer = Callable[[Scan, Labels], tuple[float, dict[str, float]]]  # total, by vessel


@dataclass(frozen=True)
class CocaRow:
    """One line of the survey; ``problem`` is None exactly where the patient is usable."""

    id: str
    gated: bool
    usable: bool
    problem: str | None
    slices: int | None
    spacing_mm: tuple[float, float, float] | None  # z, y, x
    agatston_rois: float | None  # by the fields of the ROIs alone
    agatston: float | None  # by the scorer, from the pixels
    per_vessel: dict[str, float] | None  # by the scorer; of non-gated scans by the sheet
    sheet_total: float | None
    notes: tuple[str, ...] = ()


def read_gated(patient: CocaPatient, *, missing_xml_is_zero: bool = False) -> tuple[Scan, Labels]:
    """Return a gated scan and its drawn calcium, or say why the patient is not usable.

    Remarks on the annotation are added to the scan's warnings. A patient without an annotation
    is refused unless ``missing_xml_is_zero`` decides that it has no calcium.
    """
    slices, rois = _read_annotated(patient, missing_xml_is_zero=missing_xml_is_zero)
    scan = read_scan(slices.folder)
    mismatch = slices.grid.mismatch(scan.volume.grid)
    if mismatch is not None:
        raise ProdmError(f"the images differ from their headers: {mismatch}")
    labels, notes = _draw(rois, slices, scan.volume)
    return replace(scan, warnings=(*scan.warnings, *_name_notes(rois), *notes)), labels


def read_nongated(patient: CocaPatient) -> Scan:
    """Return a non-gated scan, whatever the sheet says of it."""
    if patient.folder is None:
        raise ProdmError("no DICOM for this row of the sheet")
    return read_scan(read_slices(patient.folder).folder)


def survey(
    patients: Sequence[CocaPatient],
    scorer: Scorer | None = None,
    *,
    missing_xml_is_zero: bool = False,
    progress: Progress = no_progress,
) -> list[CocaRow]:
    """Say of each patient what is there, what is wrong, and what it scores.

    Without a scorer only headers and annotations are read: no pixel is decoded, and a mask that
    does not lie on calcium goes unnoticed.
    """
    rows = []
    for done, patient in enumerate(patients):
        progress(done, len(patients))
        if patient.gated:
            row = _survey_gated(patient, missing_xml_is_zero=missing_xml_is_zero)
            if row.usable and scorer is not None:
                row = _with_score(row, patient, scorer, missing_xml_is_zero=missing_xml_is_zero)
        else:
            row = _survey_nongated(patient)
        rows.append(row)
    progress(len(patients), len(patients))
    return rows


def _survey_gated(patient: CocaPatient, *, missing_xml_is_zero: bool) -> CocaRow:
    slices, slices_problem = _try_slices(patient)
    spacing_mm = slices.grid.spacing_mm if slices else None
    agatston_rois = None
    notes: tuple[str, ...] = ()
    problem = None
    try:
        rois = _read_rois(patient, missing_xml_is_zero=missing_xml_is_zero)
        agatston_rois = (
            agatston_of_fields(rois, spacing_mm[0]) if spacing_mm else agatston_of_fields(rois)
        )[0]
        notes = _name_notes(rois)
        if slices is not None:
            _match(rois, slices)
    except ProdmError as error:
        problem = str(error)
    problem = "; ".join(part for part in (slices_problem, problem) if part) or None
    return CocaRow(
        id=patient.id,
        gated=True,
        usable=problem is None,
        problem=problem,
        slices=len(slices.files) if slices else None,
        spacing_mm=spacing_mm,
        agatston_rois=agatston_rois,
        agatston=None,
        per_vessel=None,
        sheet_total=None,
        notes=notes,
    )


def _with_score(
    row: CocaRow, patient: CocaPatient, scorer: Scorer, *, missing_xml_is_zero: bool
) -> CocaRow:
    try:
        scan, labels = read_gated(patient, missing_xml_is_zero=missing_xml_is_zero)
        agatston, per_vessel = scorer(scan, labels)
    except ProdmError as error:
        return replace(row, usable=False, problem=str(error))
    return replace(row, agatston=agatston, per_vessel=per_vessel, notes=scan.warnings)


def _survey_nongated(patient: CocaPatient) -> CocaRow:
    slices, problem = _try_slices(patient)
    sheet = patient.sheet
    sheet_problem = patient.sheet_problem or (
        sheet.problem if sheet else f"no row for it in {SHEET_NAME}"
    )
    problem = "; ".join(part for part in (problem, sheet_problem) if part) or None
    per_vessel = {vessel.name: score for vessel, score in sheet.per_vessel.items()} if sheet else {}
    return CocaRow(
        id=patient.id,
        gated=False,
        usable=problem is None,
        problem=problem,
        slices=len(slices.files) if slices else None,
        spacing_mm=slices.grid.spacing_mm if slices else None,
        agatston_rois=None,
        agatston=None,
        per_vessel=per_vessel or None,
        sheet_total=sheet.total if sheet else None,
    )


def _try_slices(patient: CocaPatient) -> tuple[CocaSlices | None, str | None]:
    if patient.folder is None:
        what = "annotation" if patient.gated else "row in the sheet"
        return None, f"no DICOM for this {what}"
    try:
        return read_slices(patient.folder), None
    except ProdmError as error:
        return None, str(error)


def _read_annotated(
    patient: CocaPatient, *, missing_xml_is_zero: bool
) -> tuple[CocaSlices, list[Roi]]:
    slices, problem = _try_slices(patient)
    if slices is None:
        raise ProdmError(str(problem))
    rois = _read_rois(patient, missing_xml_is_zero=missing_xml_is_zero)
    _match(rois, slices)
    return slices, rois


def _read_rois(patient: CocaPatient, *, missing_xml_is_zero: bool) -> list[Roi]:
    if patient.xml is not None:
        return read_rois(patient.xml)
    if missing_xml_is_zero:
        return []
    raise ProdmError(f"no annotation: there is no {XML_FOLDER}/{patient.id}.xml")


def _match(rois: list[Roi], slices: CocaSlices) -> list[int]:
    """Return the slice of each ROI: by z, with the image index as a check."""
    if not slices.is_axial:
        raise ProdmError("its slices are not axial with rows to the left and columns to the back")
    num_slices, num_rows, num_columns = slices.grid.shape
    z_mm = np.array(slices.z_mm)
    matched = []
    for roi in rois:
        if roi.image_index >= num_slices:
            raise ProdmError(
                f"the annotation's image index {roi.image_index} lies beyond the "
                f"{num_slices} slices"
            )
        nearest = int(np.argmin(np.abs(z_mm - roi.z_mm)))
        if abs(z_mm[nearest] - roi.z_mm) > SAME_Z_MM:
            raise ProdmError(f"the annotation's z {roi.z_mm:g} mm matches no slice")
        if nearest != roi.image_index:
            raise ProdmError(
                f"the annotation's image index {roi.image_index} and z {roi.z_mm:g} mm "
                f"(slice {nearest}) contradict each other"
            )
        low, high = roi.points_px.min(axis=0), roi.points_px.max(axis=0)
        if min(low) < -1 or high[0] > num_columns or high[1] > num_rows:
            raise ProdmError(f"an ROI of image {roi.image_index} reaches beyond the image")
        matched.append(nearest)
    return matched


def _draw(rois: list[Roi], slices: CocaSlices, volume: Volume) -> tuple[Labels, tuple[str, ...]]:
    """Fill the outlines, and refuse a mask that does not lie on the calcium it describes."""
    labels = np.zeros(volume.shape, dtype=np.uint8)
    pixel_mm2 = volume.spacing_mm[1] * volume.spacing_mm[2]
    stray_mm2 = 0.0
    num_stray = num_disputed = 0
    for roi, z in zip(rois, _match(rois, slices), strict=True):
        pixels = pixels_inside(roi.points_px, (volume.shape[1], volume.shape[2]))
        if not _describes(roi, volume.hu[z][pixels], pixel_mm2):
            num_stray += 1
            stray_mm2 += roi.area_mm2
        disputed = pixels & (labels[z] > 0) & (labels[z] != roi.vessel)
        num_disputed += int(disputed.sum())
        labels[z][pixels & ~disputed] = roi.vessel
    if stray_mm2 > MAX_STRAY_FRACTION * sum(roi.area_mm2 for roi in rois):
        raise ProdmError(
            f"bad mask: under {num_stray} of {len(rois)} ROIs the image does not show the "
            "calcium that their fields describe"
        )
    notes = []
    if num_stray:
        notes.append(f"{num_stray} of {len(rois)} ROIs differ from the image under them")
    if num_disputed:
        notes.append(f"{num_disputed} pixels are drawn for two vessels; the first one counts")
    return labels, tuple(notes)


def _describes(roi: Roi, hu: NDArray[np.int16 | np.float32], pixel_mm2: float) -> bool:
    """Whether the pixels under an outline have the peak and the count that its fields state."""
    if hu.size == 0 or hu.max() < CALCIUM_THRESHOLD_HU:
        return False
    num_stated = roi.area_mm2 / pixel_mm2
    allowed = max(SAME_COUNT_PIXELS, SAME_COUNT_FRACTION * num_stated)
    same_count = abs(hu.size - num_stated) <= allowed
    return bool(same_count and abs(float(hu.max()) - roi.max_hu) <= SAME_PEAK_HU)


def _name_notes(rois: list[Roi]) -> tuple[str, ...]:
    """Remark on names that mean no vessel."""
    dirty = sorted({roi.name for roi in rois if roi.vessel is Vessel.UNSPECIFIED})
    if not dirty:
        return ()
    names = ", ".join(repr(name[:40]) for name in dirty[:3])
    return (f"ROIs named {names} mean no vessel and are unspecified",)
