r"""A corrected scan as a new DICOM series of the same study, beside the original.

The series is derived in DICOM's sense (PS3.3 C.7.6.1.1): new SOP and series instance UIDs, the
same study and frame of reference, ``DERIVED\SECONDARY``, what was done in
``DerivationDescription`` and where it came from in ``SourceImageSequence``. Patient and study
attributes are those of the source. Enhanced multi-frame images stay enhanced multi-frame.

Pixels: a voxel that the correction left alone keeps its stored value, bit for bit, padding
included; a changed one is rounded to the rescale step of its slice. ``BitsStored`` is widened,
up to 16, for values that the source's bits cannot hold; beyond that the scan is refused, since a
wrapped or clipped value would be a wrong HU. Pixels are written uncompressed; what the source
says about earlier lossy compression stays.

The same source, settings and result give the same bytes: UIDs are made from them, and dates are
those of the source, because the clock is no part of the result. Private attributes are left out:
nobody can say whether they still hold.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom import config
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code
from pydicom.uid import (
    UID,
    ExplicitVRLittleEndian,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLSNearLossless,
)

import prodm
from prodm.calcium import AIR_HU
from prodm.errors import ProdmError
from prodm.files.pixels import decode
from prodm.files.provenance import (
    PRIVATE_SCHEME,
    RESEARCH_ONLY,
    coded,
    digest_of,
    equipment,
    plain_text,
    read_headers,
    save,
    series_description,
    series_number,
    stable_uid,
)
from prodm.files.scans import Scan
from prodm.volume import Volume

SERIES_NUMBER_OFFSET = 1000  # beyond the numbers that scanners count up
MOTION_CORRECTION = Code("motion", PRIVATE_SCHEME, "Correction of motion")

_STALE = (
    "InstanceCreationDate",
    "InstanceCreationTime",
    "InstanceCreatorUID",
    "SmallestImagePixelValue",
    "LargestImagePixelValue",
    "SmallestPixelValueInSeries",
    "LargestPixelValueInSeries",
    "IconImageSequence",
    "DigitalSignaturesSequence",
    "MACParametersSequence",
    "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths",
    "DataSetTrailingPadding",
)
_LOSSY_METHODS = {
    JPEGBaseline8Bit: "ISO_10918_1",
    JPEGExtended12Bit: "ISO_10918_1",
    JPEGLSNearLossless: "ISO_14495_1",
}


def write_derived_series(
    scan: Scan,
    corrected: Volume,
    folder: Path,
    *,
    description: str,
    settings: Mapping[str, Any],
) -> list[Path]:
    """Write ``corrected`` as a series derived from ``scan`` and return its files, ascending z.

    ``description`` says in a few words what was done; ``settings`` say how, and together with
    the scan and the result decide the UIDs. A failed write leaves no file behind.
    """
    if difference := scan.volume.grid.mismatch(corrected.grid):
        raise ProdmError(f"the corrected volume must be on the scan's grid, but {difference}")
    with config.disable_value_validation():  # keep what the source says, malformed or not
        headers, source_digest = read_headers(scan)
        bits_stored = _bits_needed(scan, corrected, headers)
        how = json.dumps(dict(settings), sort_keys=True, default=str)
        words = (source_digest, how, description, prodm.__version__)
        series_uid = stable_uid("derived series", digest_of(corrected.hu, *words))
        numbers = _instance_numbers(headers)
        written: list[Path] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for index, source in enumerate(scan.datasets(pixels=True)):
                target = folder / f"image-{index + 1:04d}.dcm"
                stored = _stored_values(source, index, scan, corrected)
                derived = _derived_dataset(source, headers[index], description, how)
                derived.SeriesInstanceUID = series_uid
                derived.SOPInstanceUID = stable_uid("derived image", series_uid, str(index))
                derived.InstanceNumber = numbers[index]
                _set_pixels(derived, stored, bits_stored)
                _write_new(derived, target, written)
        except OSError as error:
            for path in written:
                path.unlink(missing_ok=True)
            raise ProdmError(f"cannot write to {folder}: {error.strerror or error}") from error
    return written


def _write_new(derived: Dataset, target: Path, written: list[Path]) -> None:
    if target.exists():
        raise FileExistsError(f"{target.name} exists already")
    written.append(target)
    save(derived, target)


def _derived_dataset(source: Dataset, header: Dataset, description: str, how: str) -> Dataset:
    """Turn the source, of which this is a copy in memory, into an image derived from it."""
    derived = source
    _keep_lossy_history(derived)
    derived.remove_private_tags()
    for keyword in _STALE:
        if keyword in derived:
            del derived[keyword]
    for keyword in ("StudyInstanceUID", "FrameOfReferenceUID", "SOPClassUID"):
        setattr(derived, keyword, header[keyword].value)
    derived.SeriesNumber = series_number(header, SERIES_NUMBER_OFFSET)
    derived.SeriesDescription = series_description(description)
    derived.DerivationDescription = plain_text(
        f"{description}; prodm {prodm.__version__}, {RESEARCH_ONLY}; settings {how}"
    )[:1024]
    earlier = list(derived.get("ContributingEquipmentSequence") or [])
    derived.ContributingEquipmentSequence = [*earlier, _contributing_equipment()]
    reference = Dataset()
    reference.ReferencedSOPClassUID = header.SOPClassUID
    reference.ReferencedSOPInstanceUID = header.SOPInstanceUID
    if "PerFrameFunctionalGroupsSequence" in derived:
        _derive_frames(derived, header, reference)
        return derived
    flavor = list(derived.get("ImageType") or [])[2:] or ["AXIAL"]
    derived.ImageType = ["DERIVED", "SECONDARY", *flavor]
    derived.SourceImageSequence = [_source_image(reference)]
    return derived


def _contributing_equipment() -> Dataset:
    item = Dataset()
    item.PurposeOfReferenceCodeSequence = [coded(codes.DCM.ModifyingEquipment)]
    for keyword, value in equipment().items():
        setattr(item, keyword, value)
    item.ContributionDescription = f"Correction of motion, {RESEARCH_ONLY}"
    return item


def _source_image(reference: Dataset) -> Dataset:
    item = Dataset()
    item.update(reference)
    item.SpatialLocationsPreserved = "YES"
    purpose = codes.DCM.SourceImageForImageProcessingOperation
    item.PurposeOfReferenceCodeSequence = [coded(purpose)]
    return item


def _derive_frames(derived: Dataset, header: Dataset, reference: Dataset) -> None:
    """Say of each frame of an enhanced image what it is derived from.

    The second value of an enhanced image type is always PRIMARY.
    """
    derived.ImageType = ["DERIVED", "PRIMARY", *list(derived.ImageType)[2:]]
    shared = derived.SharedFunctionalGroupsSequence[0]
    groups = derived.PerFrameFunctionalGroupsSequence
    for group in (shared, *groups):
        for frame_type in group.get("CTImageFrameTypeSequence") or []:
            frame_type.FrameType = ["DERIVED", "PRIMARY", *list(frame_type.FrameType)[2:]]
        if "DerivationImageSequence" in group:
            del group.DerivationImageSequence
    for number, group in enumerate(groups, start=1):
        source_image = _source_image(reference)
        source_image.ReferencedFrameNumber = number
        derivation = Dataset()
        derivation.DerivationCodeSequence = [coded(MOTION_CORRECTION)]
        derivation.DerivationDescription = derived.DerivationDescription
        derivation.SourceImageSequence = [source_image]
        group.DerivationImageSequence = [derivation]
    del derived.DerivationDescription  # in an enhanced image it belongs to the frames
    series = Dataset()
    series.SeriesInstanceUID = header.SeriesInstanceUID
    series.ReferencedSOPSequence = [reference]
    study = Dataset()
    study.StudyInstanceUID = header.StudyInstanceUID
    study.ReferencedSeriesSequence = [series]
    derived.SourceImageEvidenceSequence = [study]


def _keep_lossy_history(dataset: Dataset) -> None:
    """Say that pixels were lossy where only the source's transfer syntax said so."""
    syntax = UID(str(dataset.file_meta.get("TransferSyntaxUID") or ExplicitVRLittleEndian))
    if syntax not in _LOSSY_METHODS or dataset.get("LossyImageCompression") == "01":
        return
    num_bytes = int(dataset.Rows) * int(dataset.Columns) * int(dataset.BitsAllocated) // 8
    num_bytes *= int(dataset.get("NumberOfFrames") or 1)
    dataset.LossyImageCompression = "01"
    dataset.LossyImageCompressionRatio = round(num_bytes / len(dataset.PixelData), 2)
    dataset.LossyImageCompressionMethod = _LOSSY_METHODS[syntax]


def _instance_numbers(headers: Sequence[Dataset]) -> list[int]:
    """Return the source's instance numbers, or 1, 2, … upwards where they are no numbering."""
    try:
        numbers = [int(header.InstanceNumber) for header in headers]
    except (AttributeError, TypeError, ValueError):
        numbers = []
    if len(set(numbers)) != len(headers):
        return list(range(1, len(headers) + 1))
    return numbers


def _slices_of(scan: Scan, index: int) -> Iterator[tuple[int, int]]:
    """Yield (frame, slice) for the slices of the volume that dataset ``index`` holds."""
    if not scan.frame_indices:
        yield 0, index
    for number, frame in enumerate(scan.frame_indices):
        yield frame, number


def _rescale(dataset: Dataset, frame: int) -> tuple[float, float]:
    """Return the slope and the intercept of one frame, from stored values to HU."""
    holder = dataset
    if "PerFrameFunctionalGroupsSequence" in dataset:
        own = dataset.PerFrameFunctionalGroupsSequence[frame]
        shared = dataset.SharedFunctionalGroupsSequence[0]
        keyword = "PixelValueTransformationSequence"
        holder = (own if keyword in own else shared)[keyword][0]
    return float(holder.RescaleSlope), float(holder.RescaleIntercept)


def _bits_needed(scan: Scan, corrected: Volume, headers: Sequence[Dataset]) -> int:
    """Return the BitsStored, for all images alike, that hold the source and the changes."""
    bits = max(int(header.BitsStored) for header in headers)
    for index, header in enumerate(headers):
        signed = bool(header.PixelRepresentation)
        for frame, number in _slices_of(scan, index):
            hu = corrected.hu[number]
            values = hu[hu != scan.volume.hu[number]]
            if values.size == 0:
                continue
            if not np.all(np.isfinite(values)):
                raise ProdmError("the corrected volume holds values that are not numbers")
            stored = _to_stored(values, *_rescale(header, frame))
            low, high = int(stored.min()), int(stored.max())
            bits = max(bits, _bits_for(low, signed), _bits_for(high, signed))
            if bits > 16 or (low < 0 and not signed):
                raise ProdmError(
                    "corrected values must fit the 16 bits of the source's images, got "
                    f"{values.min():g} to {values.max():g} HU in slice {number}; check the "
                    "correction"
                )
    return bits


def _bits_for(stored: int, signed: bool) -> int:
    return (stored if stored >= 0 else ~stored).bit_length() + int(signed)


def _to_stored(hu: NDArray[Any], slope: float, intercept: float) -> NDArray[np.int64]:
    stored: NDArray[np.float64] = (hu.astype(np.float64) - intercept) / slope
    return np.rint(stored).astype(np.int64)


def _stored_values(source: Dataset, index: int, scan: Scan, corrected: Volume) -> NDArray[np.int64]:
    """Return the source's stored values with the changes of the correction put in."""
    all_frames = range(int(source.get("NumberOfFrames") or 1))
    images = decode(source, all_frames, f"image {index + 1} of {scan.path}")
    stored = np.stack(list(images)).astype(np.int64)
    padding = _padding_range(source)
    for frame, number in _slices_of(scan, index):
        if np.array_equal(corrected.hu[number], scan.volume.hu[number]):
            continue
        slope, intercept = _rescale(source, frame)
        hu = scan.stored.to_stored(corrected.hu[number]).astype(np.float64)
        moved_hu = np.abs(hu - scan.stored.to_stored(scan.volume.hu[number]))
        changed = moved_hu >= abs(slope) / 2  # less does not reach the next stored value
        values = _to_stored(hu[changed], slope, intercept)
        if padding is not None:  # tissue must not turn into padding
            low, high = padding
            hidden = (values >= low) & (values <= high) & (hu[changed] > AIR_HU)
            values[hidden] = high + 1
        stored[frame][changed] = values
    return stored


def _padding_range(source: Dataset) -> tuple[int, int] | None:
    if source.get("PixelPaddingValue") is None:
        return None
    value = int(source.PixelPaddingValue)
    limit = source.get("PixelPaddingRangeLimit")
    ends = (value, value if limit is None else int(limit))
    return min(ends), max(ends)


def _set_pixels(derived: Dataset, stored: NDArray[np.int64], bits_stored: int) -> None:
    signed = bool(derived.PixelRepresentation)
    low, high = int(stored.min()), int(stored.max())
    bits_stored = max(bits_stored, _bits_for(low, signed), _bits_for(high, signed))
    if bits_stored > 16:
        raise ProdmError("the stored values of a CT image need 16 bits at most, got more")
    derived.BitsAllocated = 16
    derived.BitsStored, derived.HighBit = bits_stored, bits_stored - 1
    derived.PixelData = stored.astype("<i2" if signed else "<u2").tobytes()
    derived["PixelData"].VR = "OW"
