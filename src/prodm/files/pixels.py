"""Stored DICOM pixels to HU: decode, rescale, and turn padding into air.

Pixels outside the field of view hold a padding value that is no HU. It is declared by
PixelPaddingValue (and PixelPaddingRangeLimit) or, in many real files, not declared at all:
-2000, -2048 and -3024 HU are common. Nothing in a patient or in noisy air lies below
``PADDING_BELOW_HU``, so all that does is padding too. A declared value that would be a
tissue, such as 0 HU, is left alone: replacing it would punch holes into the image.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset
from pydicom.pixels.decoders.base import get_decoder
from pydicom.uid import UID, ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

from prodm.calcium import AIR_HU
from prodm.errors import ProdmError
from prodm.files.parsing import damage_as
from prodm.volume import Hounsfield

PADDING_BELOW_HU = -1500.0
TISSUE_HU = (-1000.0, 3071.0)  # a padding value strictly between may be tissue
PIXEL_TAGS = [
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "PlanarConfiguration",
    "NumberOfFrames",
    "Rows",
    "Columns",
    "BitsAllocated",
    "BitsStored",
    "HighBit",
    "PixelRepresentation",
    "PixelPaddingValue",
    "PixelPaddingRangeLimit",
    "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths",
    "PixelData",
    "FloatPixelData",
    "DoubleFloatPixelData",
]
PLUGINS = {  # the decoder that reads this syntax exactly; others are pydicom's own
    "1.2.840.10008.1.2.4.50": "gdcm",  # JPEG baseline
    "1.2.840.10008.1.2.4.51": "gdcm",  # JPEG extended, 12 bit
    "1.2.840.10008.1.2.4.57": "gdcm",  # JPEG lossless, process 14
    "1.2.840.10008.1.2.4.70": "gdcm",  # JPEG lossless, first-order prediction
    "1.2.840.10008.1.2.4.80": "pyjpegls",  # JPEG-LS lossless
    "1.2.840.10008.1.2.4.81": "pyjpegls",  # JPEG-LS near-lossless
    "1.2.840.10008.1.2.4.90": "pylibjpeg",  # JPEG 2000 lossless
    "1.2.840.10008.1.2.4.91": "pylibjpeg",  # JPEG 2000
    "1.2.840.10008.1.2.4.201": "pylibjpeg",  # HTJ2K
    "1.2.840.10008.1.2.4.202": "pylibjpeg",
    "1.2.840.10008.1.2.4.203": "pylibjpeg",
}
LOSSY_SYNTAXES = tuple(f"1.2.840.10008.1.2.4.{n}" for n in (50, 51, 81, 91, 203))


def decode(dataset: Dataset, frames: Sequence[int], label: str) -> Iterator[NDArray[Any]]:
    """Yield the stored values [rows, columns] of frames of a dataset, in the order asked for."""
    with damage_as(f"{label} is a damaged DICOM file: its image cannot be described"):
        syntax = transfer_syntax(dataset)
        if dataset.get("SamplesPerPixel", 1) != 1:
            raise ProdmError(f"{label} is a colour image, not a CT slice")
        if not dataset.get("PixelData"):
            raise ProdmError(f"{label} has no pixel data; the file is cut short")
        shape = (int(dataset.Rows), int(dataset.Columns))
    plugin = PLUGINS.get(str(syntax), "")
    if plugin == "gdcm":
        _silence_gdcm()
    sentence = f"{label} has damaged pixel data ({syntax.name}); copy the file again"
    with damage_as(f"{label} is stored as {syntax.name}, which cannot be decoded here"):
        decoder = get_decoder(syntax)
    images = decoder.iter_array(dataset, indices=list(frames), raw=True, decoding_plugin=plugin)
    for _ in frames:
        with damage_as(sentence):
            array, _ = next(images)
        if array.shape != shape:
            raise ProdmError(sentence)
        yield array


def transfer_syntax(dataset: Dataset) -> UID:
    """Return the transfer syntax; a bare dataset without file meta is taken as it was parsed."""
    stated = getattr(dataset.file_meta, "TransferSyntaxUID", None)
    if stated is None:
        implicit, little = dataset.original_encoding
        stated = ImplicitVRLittleEndian if implicit else ExplicitVRLittleEndian
        if not little:
            stated = ExplicitVRBigEndian
        dataset.file_meta.TransferSyntaxUID = stated
    return UID(str(stated))


def _silence_gdcm() -> None:
    """Keep GDCM, which is C++, from writing about damaged data to standard error."""
    import gdcm

    gdcm.Trace.WarningOff()
    gdcm.Trace.ErrorOff()
    gdcm.Trace.DebugOff()


def to_hu(
    stored: NDArray[Any], slope: float, intercept: float, padding: tuple[int, int] | None
) -> NDArray[np.float64]:
    """Return HU [rows, columns], with padding as air."""
    hu: NDArray[np.float64] = stored.astype(np.float64)
    if slope != 1:
        hu *= slope
    hu += intercept
    if padding is not None and tissue_padding_hu(padding, slope, intercept) is None:
        hu[(stored >= padding[0]) & (stored <= padding[1])] = AIR_HU
    hu[hu < PADDING_BELOW_HU] = AIR_HU
    return hu


def declared_padding(dataset: Dataset) -> tuple[int, int] | None:
    """Return the lowest and highest stored value that the header declares as padding."""
    value = _stored_number(dataset, "PixelPaddingValue")
    if value is None:
        return None
    limit = _stored_number(dataset, "PixelPaddingRangeLimit")
    return (value, value) if limit is None else (min(value, limit), max(value, limit))


def _stored_number(dataset: Dataset, keyword: str) -> int | None:
    """A pixel value from the header, in the representation of the pixels.

    Real files often write it with the wrong sign: 63536 for -2000.
    """
    value = dataset.get(keyword)
    if isinstance(value, bytes):
        value = int.from_bytes(value[:2], "little")
    if not isinstance(value, int):
        return None
    bits = int(dataset.get("BitsAllocated", 16))
    value %= 1 << bits
    signed = dataset.get("PixelRepresentation", 0) == 1
    return value - (1 << bits) if signed and value >= 1 << (bits - 1) else value


def tissue_padding_hu(padding: tuple[int, int], slope: float, intercept: float) -> float | None:
    """Return declared padding in HU where it would be a tissue and is left alone, else None."""
    ends = sorted(value * slope + intercept for value in padding)
    left_alone = ends[1] > TISSUE_HU[0] and ends[0] < TISSUE_HU[1]
    return ends[0] if left_alone else None


class HounsfieldArray:
    """HU collected slice by slice: int16 as long as that is exact, then float32."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.hu: Hounsfield = np.empty(shape, dtype=np.int16)

    def put(self, index: int, values: NDArray[np.float64], label: str) -> None:
        """Store one slice."""
        if not np.isfinite(values).all():
            raise ProdmError(f"{label} holds values that are not finite numbers")
        if self.hu.dtype == np.int16 and not is_exact_int16(values):
            self.hu = self.hu.astype(np.float32)
        if np.abs(values).max() > float(np.finfo(np.float32).max):
            raise ProdmError(f"{label} holds values far beyond any HU; its rescale is damaged")
        self.hu[index] = values


def is_exact_int16(values: NDArray[Any]) -> bool:
    """Tell whether 16-bit integers hold these numbers without loss."""
    if values.size == 0:
        return True
    limits = np.iinfo(np.int16)
    if values.min() < limits.min or values.max() > limits.max:
        return False
    return values.dtype.kind in "iub" or bool((values == np.rint(values)).all())
