"""A maker of small, valid DICOM CT series, and the validator of what is written."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from pydicom import config
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import (
    PYDICOM_IMPLEMENTATION_UID,
    UID,
    CTImageStorage,
    EnhancedCTImageStorage,
    ExplicitVRLittleEndian,
)

UID_ROOT = "1.2.826.0.1.3680043.8.498.77"


@pytest.fixture
def write_ct_series() -> Callable[..., list[Path]]:
    """Return a function that writes a CT series to a folder: see ``_write_ct_series``."""
    return _write_ct_series


@pytest.fixture
def write_enhanced_ct() -> Callable[..., Path]:
    """Return a function that writes an enhanced CT image: see ``_write_enhanced_ct``."""
    return _write_enhanced_ct


@pytest.fixture
def dciodvfy_errors() -> Callable[[Path], set[str]]:
    """Return a function that lists the errors of the validator of dicom3tools in a file."""
    if shutil.which("dciodvfy") is None:
        reason = "dciodvfy (Debian's dicom3tools) is not installed"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)

    def errors(path: Path) -> set[str]:
        answer = subprocess.run(
            ["dciodvfy", str(path)], capture_output=True, text=True, errors="replace", check=False
        )
        return {line for line in answer.stderr.splitlines() if line.startswith("Error")}

    return errors


@pytest.fixture
def tolerant_pydicom() -> Iterator[None]:
    """Let a test write and read malformed values."""
    with config.disable_value_validation():
        yield


def _write_ct_series(
    folder: Path,
    hu: ArrayLike | None = None,
    *,
    num_slices: int = 5,
    spacing_mm: tuple[float, float, float] = (3.0, 0.5, 0.5),
    origin_xyz_mm: tuple[float, float, float] = (-10.0, -20.0, 100.0),
    orientation: Sequence[float] = (1, 0, 0, 0, 1, 0),
    slope: float = 1.0,
    intercept: float = -1024.0,
    signed: bool = False,
    bits_stored: int = 12,
    series: int = 1,
    change: Callable[[Dataset, int], None] | None = None,
) -> list[Path]:
    """Write a CT series and return its files in the order of the slices.

    Slices go up along the normal of ``orientation``, by default ascending z; names of files
    run the other way, as in COCA. ``hu`` is [Z, Y, X], or [Y, X] to repeat, and is rounded to
    the rescale step. ``change(dataset, index)`` may edit each image before it is written.
    """
    values = _made_up_hu(num_slices) if hu is None else np.asarray(hu, dtype=np.float64)
    if values.ndim == 2:
        values = np.repeat(values[None], num_slices, axis=0)
    folder.mkdir(parents=True, exist_ok=True)
    normal = np.cross(orientation[:3], orientation[3:])
    files = []
    for index, image in enumerate(values):
        position = np.asarray(origin_xyz_mm) + index * spacing_mm[0] * normal
        dataset = _ct_dataset(series, index)
        dataset.Rows, dataset.Columns = image.shape
        dataset.PixelSpacing = [spacing_mm[1], spacing_mm[2]]
        dataset.SliceThickness = spacing_mm[0]
        dataset.ImagePositionPatient = [round(float(x), 6) for x in position]
        dataset.ImageOrientationPatient = [round(float(x), 6) for x in orientation]
        dataset.RescaleSlope, dataset.RescaleIntercept = slope, intercept
        dataset.BitsAllocated = 16
        dataset.BitsStored, dataset.HighBit = bits_stored, bits_stored - 1
        dataset.PixelRepresentation = int(signed)
        stored = np.rint((image - intercept) / slope).astype(np.int16 if signed else np.uint16)
        dataset.PixelData = stored.tobytes()
        if change is not None:
            change(dataset, index)
        path = folder / f"IM-{series:04d}-{len(values) - index:04d}.dcm"
        dataset.save_as(path, enforce_file_format=True)
        files.append(path)
    return files


def _write_enhanced_ct(path: Path, num_frames: int = 5) -> Path:
    """Write an enhanced multi-frame CT image whose frames run from head to foot."""
    hu = _made_up_hu(num_frames)[::-1]
    dataset = _ct_dataset(1, 0)
    for keyword in ("RescaleType", "WindowCenter", "WindowWidth", "ConvolutionKernel", "KVP"):
        del dataset[keyword]
    dataset.SOPClassUID = EnhancedCTImageStorage
    dataset.file_meta.MediaStorageSOPClassUID = EnhancedCTImageStorage
    dataset.ImageType = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
    dataset.NumberOfFrames = num_frames
    dataset.Rows, dataset.Columns = hu.shape[1:]
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 16, 15
    dataset.PixelRepresentation = 1
    dataset.PixelData = hu.astype(np.int16).tobytes()
    measures = _item(PixelSpacing=[0.5, 0.5], SliceThickness=3)
    frame_type = _item(FrameType=["ORIGINAL", "PRIMARY", "VOLUME", "NONE"])
    shared = _item(
        PixelMeasuresSequence=[measures],
        PlaneOrientationSequence=[_item(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])],
        CTImageFrameTypeSequence=[frame_type],
    )
    dataset.SharedFunctionalGroupsSequence = [shared]
    dataset.PerFrameFunctionalGroupsSequence = [
        _item(
            PlanePositionSequence=[
                _item(ImagePositionPatient=[-10, -20, 100 + 3 * (num_frames - 1 - number)])
            ],
            PixelValueTransformationSequence=[
                _item(RescaleSlope=1, RescaleIntercept=0, RescaleType="HU")
            ],
        )
        for number in range(num_frames)
    ]
    dataset.save_as(path, enforce_file_format=True)
    return path


def _item(**values: object) -> Dataset:
    item = Dataset()
    for keyword, value in values.items():
        setattr(item, keyword, value)
    return item


def _made_up_hu(num_slices: int) -> NDArray[np.float64]:
    """Soft tissue in air with a calcium spot; 24 rows, 32 columns, no symmetry."""
    z, y, x = np.ogrid[:num_slices, :24, :32]
    hu: NDArray[np.float64] = np.where((y - 11) ** 2 + (x - 15) ** 2 < 100, 40.0, -1000.0)
    hu = hu + z + 2 * (y % 3) + (x % 2)
    hu[num_slices // 2, 8:11, 12:16] = 350
    return hu


def _ct_dataset(series: int, index: int) -> Dataset:
    """Everything of a CT image but its pixels and geometry."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = CTImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = UID(f"{UID_ROOT}.{series}.{index + 1}")
    dataset.file_meta.ImplementationClassUID = PYDICOM_IMPLEMENTATION_UID
    dataset.SpecificCharacterSet = "ISO_IR 100"
    dataset.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
    dataset.SOPClassUID = CTImageStorage
    dataset.SOPInstanceUID = f"{UID_ROOT}.{series}.{index + 1}"
    dataset.StudyInstanceUID = f"{UID_ROOT}.100"
    dataset.SeriesInstanceUID = f"{UID_ROOT}.{series}"
    dataset.FrameOfReferenceUID = f"{UID_ROOT}.200"
    dataset.PositionReferenceIndicator = ""
    dataset.StudyDate = dataset.SeriesDate = dataset.AcquisitionDate = "20200102"
    dataset.ContentDate = "20200102"
    dataset.StudyTime, dataset.SeriesTime = "101112", "101213"
    dataset.AcquisitionTime = dataset.ContentTime = "101314"
    dataset.AccessionNumber = "A1"
    dataset.StudyID = "1"
    dataset.Modality = "CT"
    dataset.Manufacturer = "Made up"
    dataset.ManufacturerModelName = "Phantom scanner"
    dataset.ReferringPhysicianName = ""
    dataset.StudyDescription = "Chest"
    dataset.SeriesDescription = f"Series {series}"
    dataset.PatientName = "Made^Up"
    dataset.PatientID = "P1"
    dataset.PatientBirthDate = "19500101"
    dataset.PatientSex = "F"
    dataset.BodyPartExamined = "CHEST"
    dataset.PatientPosition = "HFS"
    dataset.KVP = 120
    dataset.ConvolutionKernel = "I30f"
    dataset.SeriesNumber = series
    dataset.AcquisitionNumber = 1
    dataset.InstanceNumber = index + 1
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME2"
    dataset.RescaleType = "HU"
    dataset.WindowCenter, dataset.WindowWidth = 40, 400
    return dataset
