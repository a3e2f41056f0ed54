"""One door to scans and masks, whatever their format.

A scan is a DICOM folder, a DICOM file, a zip of a DICOM folder, a NIfTI or an NRRD file. A
mask is a NIfTI or NRRD file or a DICOM SEG on the scan's own grid, with the labels of
``prodm.calcium.Vessel``; a binary mask is all ``UNSPECIFIED``.
"""

from dataclasses import dataclass
from pathlib import Path

from prodm.volume import Volume


@dataclass(frozen=True)
class Scan:
    """A volume and what the file says of how it was made."""

    volume: Volume  # axes point to left, back and head
    path: Path  # what the user named
    files: tuple[Path, ...]  # DICOM: one file per slice, ascending z (one for multi-frame)
    series_uid: str | None = None  # as found or, where missing, made from the content
    description: str = ""
    slice_thickness_mm: float | None = None
    kvp: float | None = None
    contrast_agent: str | None = None
    warnings: tuple[str, ...] = ()
