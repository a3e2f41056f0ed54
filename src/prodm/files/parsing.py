"""Reading hostile bytes: one error for whatever a parser or codec makes of them.

pydicom, nibabel and the codecs raise whatever the bytes provoke, from ``struct.error`` to
``RecursionError``, and warn about much that harms nothing. Both are kept inside here.
"""

import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import IO

import pydicom
from pydicom import Dataset, config

from prodm.errors import ProdmError

DEFLATED_SYNTAXES = (b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.8.1")
MAX_INFLATED_BYTES = 4 * 2**30
INFLATION_STEP_BYTES = 2**24


@contextmanager
def damage_as(sentence: str) -> Iterator[None]:
    """Turn anything that a parser raises into a ``ProdmError`` with this sentence."""
    try:
        with config.disable_value_validation(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ProdmError:
        raise
    except OSError as error:
        if error.errno is None:  # a codec's own, such as a bad checksum
            raise ProdmError(sentence) from error
        what = f"{error.filename}: " if error.filename else ""
        raise ProdmError(f"{sentence} ({what}{error.strerror})") from error
    except Exception as error:
        raise ProdmError(sentence) from error


def read_dataset(
    file: IO[bytes], label: str, tags: list[str] | None = None, *, pixels: bool = False
) -> Dataset:
    """Return a DICOM dataset, or refuse the file as damaged.

    Args:
        file: the open file.
        label: what the error message calls it.
        tags: keywords of the elements to keep; None for all.
        pixels: also read the pixel data.
    """
    with damage_as(f"{label} is a damaged DICOM file: its header cannot be read"):
        return pydicom.dcmread(
            _with_bounded_inflation(file, label),
            force=True,
            stop_before_pixels=not pixels,
            specific_tags=tags,
        )


def _with_bounded_inflation(file: IO[bytes], label: str) -> IO[bytes]:
    """Check that a deflated dataset stays within bounds before pydicom inflates it whole."""
    head = file.read(1024)
    file.seek(0)
    if not any(syntax in head for syntax in DEFLATED_SYNTAXES):
        return file
    content = file.read()
    meta_length = int.from_bytes(content[140:144], "little")
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    rest, total = content[144 + meta_length :], 0
    while rest and not inflater.eof:
        total += len(inflater.decompress(rest, INFLATION_STEP_BYTES))
        rest = inflater.unconsumed_tail
        if total > MAX_INFLATED_BYTES:
            raise ProdmError(f"{label} unpacks to more than {MAX_INFLATED_BYTES // 2**30} GiB")
    return BytesIO(content)
