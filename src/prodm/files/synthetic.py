"""Writes a made-up scan as a valid DICOM CT series.

All identifiers derive from the patient's name and the pixels, so that the same scan always
gives the same files. Dates and times are left empty: nobody was scanned.
"""

import hashlib
from pathlib import Path

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

import prodm
from prodm.errors import ProdmError
from prodm.files.provenance import stable_uid
from prodm.volume import AXIAL, DIRECTION_TOLERANCE, Volume

INTERCEPT_HU = -1024
MAX_STORED = 2**12 - 1


def write_ct_series(
    folder: Path,
    volume: Volume,
    patient: str,
    *,
    description: str = "Phantom",
    psf_fwhm_mm: float | None = None,
) -> tuple[Path, ...]:
    """Write one file per slice into ``folder``, lowest slice first, and return the files."""
    if not np.allclose(volume.grid.direction, AXIAL, atol=DIRECTION_TOLERANCE):
        raise ProdmError("a CT series is written axial; turn the volume with to_lps() first")
    stored = np.rint(volume.hu.astype(np.float64)) - INTERCEPT_HU
    if stored.min() < 0 or stored.max() > MAX_STORED:
        raise ProdmError(
            f"a CT series holds {INTERCEPT_HU} to {MAX_STORED + INTERCEPT_HU} HU, "
            f"got {volume.hu.min()} to {volume.hu.max()}"
        )
    digest = hashlib.sha256(np.ascontiguousarray(volume.hu).tobytes()).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for index, pixels in enumerate(stored.astype("<u2")):
        dataset = _slice_header(volume, patient, index, digest)
        dataset.SeriesDescription = description
        dataset.ConvolutionKernel = "soft" if psf_fwhm_mm is None else f"soft {psf_fwhm_mm:.2f} mm"
        dataset.PixelData = pixels.tobytes()
        path = folder / f"slice-{index + 1:04d}.dcm"
        dataset.save_as(path, enforce_file_format=True)
        files.append(path)
    return tuple(files)


def _slice_header(volume: Volume, patient: str, index: int, digest: str) -> Dataset:
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID = CTImageStorage
    dataset.SOPInstanceUID = stable_uid("phantom slice", patient, digest, str(index))
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    dataset.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
    dataset.PatientName = f"{patient}^"
    dataset.PatientID = patient
    dataset.PatientBirthDate = ""
    dataset.PatientSex = "O"
    dataset.StudyInstanceUID = stable_uid("phantom study", patient, digest)
    dataset.StudyID = "1"
    dataset.StudyDate = dataset.StudyTime = ""
    dataset.AccessionNumber = dataset.ReferringPhysicianName = ""
    dataset.StudyDescription = "Computed phantom, no patient"
    dataset.SeriesInstanceUID = stable_uid("phantom series", patient, digest)
    dataset.FrameOfReferenceUID = stable_uid("phantom frame", patient, digest)
    dataset.PositionReferenceIndicator = ""
    dataset.SeriesNumber = 1
    dataset.PatientPosition = "HFS"
    dataset.Modality = "CT"
    dataset.BodyPartExamined = "CHEST"
    dataset.Manufacturer = dataset.ManufacturerModelName = "prodm"
    dataset.SoftwareVersions = prodm.__version__
    dataset.KVP = 120
    dataset.AcquisitionNumber = 1
    dataset.InstanceNumber = index + 1
    dataset.SliceThickness = f"{volume.spacing_mm[0]:.6g}"
    dataset.SpacingBetweenSlices = f"{volume.spacing_mm[0]:.6g}"
    position = volume.grid.position_xyz_mm((index, 0, 0))
    dataset.ImagePositionPatient = [f"{value:.6f}" for value in position]
    dataset.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    dataset.PixelSpacing = [f"{value:.6g}" for value in volume.spacing_mm[1:]]
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME2"
    dataset.Rows, dataset.Columns = volume.shape[1:]
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 12, 11
    dataset.PixelRepresentation = 0
    dataset.RescaleIntercept, dataset.RescaleSlope = INTERCEPT_HU, 1
    dataset.RescaleType = "HU"
    dataset.WindowCenter, dataset.WindowWidth = 40, 400
    return dataset
