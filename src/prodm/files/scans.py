"""One door to scans and masks, whatever their format.

A scan is a DICOM folder, a DICOM file, a zip of a DICOM folder, a NIfTI or an NRRD file. A
mask is a NIfTI or NRRD file or a DICOM SEG on the scan's own grid, with the labels of
``prodm.calcium.Vessel``; a binary mask is all ``UNSPECIFIED`` (see ``prodm.files.masks``).

A format is told by the content of a file, never by its name. Inputs are only read.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from prodm.errors import ProdmError
from prodm.volume import Volume

if TYPE_CHECKING:
    from pydicom import Dataset

Format = Literal["dicom", "zip", "nifti", "nrrd"]

MASK_WORDS = (
    "mask",
    "seg",
    "label",
    "calcium",
    "region",
    "lesion",
    "heart",
    "coronar",
    "annotation",
    "roi",
)


@dataclass(frozen=True)
class StoredOrder:
    """How the pixel matrix of each slice, [rows, columns] as stored, became [Y, X].

    From stored to volume: swap the two axes if ``swapped``, then flip. Along Z there is
    nothing to undo, because ``Scan.files`` and ``Scan.datasets`` ascend with the volume.

    >>> order = StoredOrder(swapped=True, flipped_x=True)
    >>> array = np.arange(6).reshape(1, 2, 3)
    >>> bool((order.to_stored(order.to_volume(array)) == array).all())
    True
    """

    swapped: bool = False
    flipped_y: bool = False
    flipped_x: bool = False

    def to_volume(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return slices [..., rows, columns] as [..., Y, X]."""
        array = np.swapaxes(stored, -1, -2) if self.swapped else stored
        return array[..., :: self._step_y, :: self._step_x]

    def to_stored(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return slices [..., Y, X] as [..., rows, columns]."""
        array = array[..., :: self._step_y, :: self._step_x]
        return np.swapaxes(array, -1, -2) if self.swapped else array

    @property
    def _step_y(self) -> int:
        return -1 if self.flipped_y else 1

    @property
    def _step_x(self) -> int:
        return -1 if self.flipped_x else 1


@dataclass(frozen=True)
class Scan:
    """A volume and what the file says of how it was made.

    To write slices that belong beside the source, take ``stored.to_stored(hu)``: its slice k
    has the pixel order of dataset k of ``datasets()``. In a multi-frame object it is frame
    ``frame_indices[k]`` of the only dataset. Padding became air in the volume: a voxel that
    is to stay as it was keeps its stored pixel.
    """

    volume: Volume  # axes point to left, back and head
    path: Path  # what the user named
    files: tuple[Path, ...]  # on disk: DICOM one per slice, ascending z; else the one file
    series_uid: str | None = None  # as found or, where missing, made from the content
    description: str = ""
    slice_thickness_mm: float | None = None
    kvp: float | None = None
    contrast_agent: str | None = None
    warnings: tuple[str, ...] = ()
    format: Format = "nifti"
    members: tuple[str, ...] = ()  # zip: the name inside it of each slice, ascending z
    frame_indices: tuple[int, ...] = ()  # multi-frame: the frame, from 0, of each slice
    stored: StoredOrder = StoredOrder()
    series_uid_made: bool = False  # True where the files have no SeriesInstanceUID

    @property
    def is_dicom(self) -> bool:
        """Whether the scan came from DICOM, so that a derived series can be written."""
        return self.format in ("dicom", "zip")

    def datasets(self, *, pixels: bool = False) -> "Iterator[Dataset]":
        """Yield the source datasets in slice order, ascending z; one for a multi-frame object.

        Works for a folder, a file and a zip; each dataset is read when its turn comes, as it
        is on disk, without pixel data unless asked for. A NIfTI or NRRD scan has none.
        """
        from prodm.files.dicom import read_datasets

        if not self.is_dicom:
            raise ProdmError(f"{self.path} is not DICOM, so it has no DICOM headers to keep")
        return read_datasets(self, pixels=pixels)


@dataclass(frozen=True)
class FoundScan:
    """A scan below a folder: ``read_scan(found.path, found.series)`` reads it."""

    path: Path
    series: str | None = None
    description: str = ""


def read_scan(path: Path, series: str | None = None) -> Scan:
    """Read a scan as a volume in HU whose axes point to left, back and head.

    Args:
        path: DICOM folder (searched to any depth), DICOM file, zip, NIfTI or NRRD file. A
            classic DICOM file is that one slice: its series is not guessed.
        series: SeriesInstanceUID, or number in the list that the error message gives when a
            folder holds several series.
    """
    from prodm.files.dicom import read_dicom
    from prodm.files.formats import file_format
    from prodm.files.nifti import read_nifti, read_nrrd

    path = Path(path)
    kind = "dicom" if path.is_dir() else file_format(path)
    if kind in ("dicom", "zip"):
        return read_dicom(path, series)
    if series is not None:
        raise ProdmError(f"--series chooses among DICOM series, and {path} is not DICOM")
    volume, warnings = read_nifti(path) if kind == "nifti" else read_nrrd(path)
    return Scan(
        volume, path, (path,), warnings=warnings, format="nifti" if kind == "nifti" else "nrrd"
    )


def find_scans(root: Path) -> list[FoundScan]:
    """Find the scans below a folder, in the order of their paths.

    A folder with DICOM files gives one entry for each series in it (localizers left out), a
    zip one for each series, a NIfTI or NRRD file one unless its name or its 8-bit values say
    that it is a mask. What cannot be listed is an entry too: reading it gives the reason.
    """
    root = Path(root)
    if not root.is_dir():
        raise ProdmError(f"{root} is not a folder to search for scans")
    found: list[FoundScan] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        found += _scans_in_folder(Path(folder), sorted(names))
    return sorted(found, key=lambda entry: (entry.path, entry.description, entry.series or ""))


def _scans_in_folder(folder: Path, names: list[str]) -> list[FoundScan]:
    """Scans among the files that lie directly in one folder."""
    from prodm.files.formats import format_of_file_or_none
    from prodm.files.nifti import stores_mask

    found = []
    has_dicom = False
    for name in names:
        path = folder / name
        kind = None if name.startswith(".") else format_of_file_or_none(path)
        if kind == "dicom":
            has_dicom = True
        elif kind == "zip":
            found += _series_of(path)
        elif kind is not None:
            named_mask = any(word in name.lower() for word in MASK_WORDS)
            if not named_mask and not stores_mask(path, kind):
                found.append(FoundScan(path))
    return found + (_series_of(folder) if has_dicom else [])


def _series_of(path: Path) -> list[FoundScan]:
    from prodm.files.archive import open_files
    from prodm.files.series import find_series

    try:
        with open_files(path, deep=False) as files:
            listing = find_series(files)
    except ProdmError:
        return [FoundScan(path)]
    if listing.damaged:
        return [FoundScan(path)]
    return [FoundScan(path, series.uid, series.description) for series in listing.worth_listing]
