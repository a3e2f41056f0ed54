"""What a file is, told by its first bytes."""

import gzip
import zlib
from pathlib import Path
from typing import Literal

from prodm.errors import ProdmError

FileFormat = Literal["dicom", "zip", "nifti", "nrrd"]

HEAD_BYTES = 1024
NIFTI_MAGICS = (b"n+1\0", b"ni1\0")
NIFTI2_MAGICS = (b"n+2\0", b"ni2\0")
EXPLICIT_VRS = (b"UL", b"UI", b"CS", b"LO", b"SH", b"DA", b"TM", b"OB")


def looks_like_dicom(head: bytes) -> bool:
    """Tell DICOM by its magic word or, in old files without one, by its first element.

    >>> looks_like_dicom(bytes(128) + b"DICM"), looks_like_dicom(b"hello")
    (True, False)
    """
    return head[128:132] == b"DICM" or _begins_with_element(head)


def _begins_with_element(head: bytes) -> bool:
    """Whether the bytes start with an element of group 2 or 8, as a bare dataset does."""
    if len(head) < 16 or head[:2] not in (b"\x08\x00", b"\x02\x00", b"\x00\x08"):
        return False
    order: Literal["big", "little"] = "big" if head[:2] == b"\x00\x08" else "little"
    element = int.from_bytes(head[2:4], order)
    implicit_length = int.from_bytes(head[4:8], order)
    return element <= 0x1199 and (head[4:6] in EXPLICIT_VRS or implicit_length <= 256)


def read_head(path: Path) -> bytes:
    """Return the first bytes of a file."""
    if path.exists() and not path.is_file():
        raise ProdmError(f"{path} is neither a file nor a folder of files")
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except FileNotFoundError:
        raise ProdmError(f"there is no file or folder {path}") from None
    except OSError as error:
        raise ProdmError(f"cannot read {path}: {error.strerror}") from error


def file_format(path: Path) -> FileFormat:
    """Return the format of a file, or refuse it."""
    kind = _format_of(read_head(path))
    if kind is None:
        raise ProdmError(f"{path} is none of DICOM, NIfTI, NRRD and zip")
    return kind


def format_of_file_or_none(path: Path) -> FileFormat | None:
    """Return the format of a file; None where it is another or cannot be read."""
    if not path.is_file():
        return None
    try:
        return _format_of(read_head(path))
    except ProdmError:
        return None


def _format_of(head: bytes) -> FileFormat | None:
    if head[:4] == b"NRRD":
        return "nrrd"
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    if head[:2] == b"\x1f\x8b":
        head = _gunzipped(head)
        return "nifti" if _is_nifti(head) else None
    if _is_nifti(head):
        return "nifti"
    return "dicom" if looks_like_dicom(head) else None


def _gunzipped(head: bytes) -> bytes:
    """First bytes inside a gzip file whose own first bytes are given."""
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, HEAD_BYTES)
    except (zlib.error, gzip.BadGzipFile):
        return b""


def _is_nifti(head: bytes) -> bool:
    return head[344:348] in NIFTI_MAGICS or head[4:8] in NIFTI2_MAGICS
