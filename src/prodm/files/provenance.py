"""What every DICOM object written here shares: a stable identity and a true origin.

Some public data sets hold missing or malformed UIDs. What is written must hold valid ones, and
the same ones each time: UIDs made here are version 5 UUIDs of what they stand for, under 2.25.
The clock is no part of a result, so dates are those of the source: the same input and settings
give the same bytes.
"""

import hashlib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom import dcmwrite
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sr.coding import Code
from pydicom.uid import PYDICOM_IMPLEMENTATION_UID, UID, ExplicitVRLittleEndian

import prodm
from prodm.errors import ProdmError
from prodm.files.scans import Scan

RESEARCH_ONLY = "research use only"
PRIVATE_SCHEME = "99PRODM"  # codes that no public scheme has
UID_NAMESPACE = uuid.UUID("5e6b1d6e-5f0c-5b0e-9a46-0f0f6d0c8a11")


def read_headers(scan: Scan) -> tuple[list[Dataset], str]:
    """Return the scan's datasets without pixels, with valid UIDs, and a hash of the scan.

    Missing and malformed UIDs are replaced by ones made from the hash, which covers the UIDs
    as found, the voxels and their place.
    """
    if not scan.is_dicom:
        raise ProdmError(f"only a DICOM scan can be the source of DICOM files, got {scan.path}")
    headers = list(scan.datasets())
    found = [str(header.get("SOPInstanceUID") or "") for header in headers]
    digest = digest_of(scan.volume.hu, scan.series_uid, scan.volume.grid, found)
    for number, header in enumerate(headers):
        for keyword, name in (
            ("StudyInstanceUID", "study"),
            ("SeriesInstanceUID", "series"),
            ("FrameOfReferenceUID", "frame of reference"),
            ("SOPInstanceUID", f"image {number}"),
        ):
            if not UID(str(header.get(keyword) or "")).is_valid:
                setattr(header, keyword, stable_uid(name, digest))
    return headers, digest


def digest_of(array: NDArray[Any], *words: object) -> str:
    """Return a hash of an array and of what describes it."""
    digest = hashlib.sha256(repr((array.shape, array.dtype.str, *words)).encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def stable_uid(*parts: str) -> str:
    """Return the UID that always stands for these words.

    >>> stable_uid("study", "a") == stable_uid("study", "a") != stable_uid("study", "b")
    True
    """
    return f"2.25.{uuid.uuid5(UID_NAMESPACE, repr(parts)).int}"


def series_description(description: str) -> str:
    """Return a SeriesDescription of at most 64 characters that names prodm and its use.

    >>> series_description("motion corrected").startswith("motion corrected (prodm ")
    True
    """
    suffix = f" (prodm {prodm.__version__}, {RESEARCH_ONLY})"
    return plain_text(description)[: 64 - len(suffix)] + suffix


def plain_text(text: str) -> str:
    r"""Return text in characters that every character set of DICOM holds.

    >>> plain_text("naïve \\ line")
    'na?ve / line'
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return printable.encode("ascii", "replace").decode().replace("\\", "/")


def series_number(header: Dataset, offset: int) -> int:
    """Return a series number apart from the source's own."""
    try:
        return int(header.get("SeriesNumber") or 0) % 10**6 + offset
    except ValueError:
        return offset


def coded(code: Code) -> Dataset:
    """Return the item of a code sequence."""
    item = Dataset()
    item.CodeValue = code.value
    item.CodingSchemeDesignator = code.scheme_designator
    item.CodeMeaning = code.meaning
    return item


def equipment() -> Mapping[str, Any]:
    """Return what this program says of itself as equipment."""
    return {
        "Manufacturer": "prodm",
        "ManufacturerModelName": "prodm",
        "SoftwareVersions": prodm.__version__,
    }


def save(dataset: Dataset, path: Path) -> None:
    """Write a dataset uncompressed; an existing file is not replaced."""
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.ImplementationClassUID = PYDICOM_IMPLEMENTATION_UID
    dcmwrite(path, dataset, enforce_file_format=True, overwrite=False)
