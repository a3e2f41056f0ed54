"""Writes made-up patients the way the COCA data set stores real ones, quirks included.

Gated: files in descending z, UIDs that break DICOM's syntax, a StudyDate in the year 1, and
the calcium as outlines in an Apple property list. Non-gated: no study, series or frame of
reference UID, and the scores in a sheet. A folder written here reads with
``prodm.files.coca`` and looks to other COCA software like the real thing.

An outline runs half a pixel outside its pixels, through the midpoints between them and their
neighbours, so that the even-odd rule at integer coordinates gives back exactly the pixels of
the label. Holes are joined to the outline by a line there and back, which that rule ignores.
"""

import plistlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prodm.calcium import Vessel
from prodm.errors import ProdmError
from prodm.files.coca_tree import (
    GATED_FOLDER,
    NONGATED_FOLDER,
    PATIENT_FOLDER,
    SHEET_NAME,
    XML_FOLDER,
)
from prodm.files.coca_xml import MM2_PER_CM2
from prodm.volume import AXIAL, DIRECTION_TOLERANCE, Volume

SERIES_FOLDER = "Pro_Gated_CS_3.0_I30f_3_70%"
STUDY_DATE = "00010101"
INTERCEPT_HU = -1024
MAX_STORED = 2**16 - 1
CLOSED_POLYGON = 11  # the Type of OsiriX
SHEET_HEADER = ("filename ", "LCA", "LAD", "LCX", "RCA", "total")  # the space is real

ROI_NAMES = {
    Vessel.LAD: "Left Anterior Descending Artery",
    Vessel.LCX: "Left Circumflex Artery",
    Vessel.RCA: "Right Coronary Artery",
    Vessel.LM: "Left Coronary Artery",
    Vessel.UNSPECIFIED: "Unnamed",
}


def write_gated(
    root: Path,
    patient_id: str,
    volume: Volume,
    labels: NDArray[np.uint8],
    series_folder: str = SERIES_FOLDER,
) -> Path:
    """Write one gated patient below ``root`` and return the folder of the slices.

    ``labels`` [Z, Y, X] holds ``Vessel`` values. Draw voxels from 130 HU on, as COCA does; what
    is below is written too, but a reader may take an outline without calcium for a mistake.
    """
    half = root / GATED_FOLDER
    folder = half / PATIENT_FOLDER / patient_id / series_folder
    write_slices(folder, patient_id, volume, invalid_uids=True)
    xml = half / XML_FOLDER / f"{patient_id}.xml"
    xml.parent.mkdir(parents=True, exist_ok=True)
    xml.write_bytes(plistlib.dumps({"Images": images_of_labels(volume, labels)}))
    return folder


def write_nongated(root: Path, patient_id: str, volume: Volume, *, flat: bool = False) -> Path:
    """Write one non-gated scan below ``root`` and return the folder of its slices."""
    folder = root / NONGATED_FOLDER / patient_id
    if not flat:
        folder = folder / patient_id
    write_slices(folder, patient_id, volume, invalid_uids=False)
    return folder


def write_sheet(root: Path, rows: Mapping[str, Sequence[float | str | None]]) -> Path:
    """Write ``scores.xlsx``: per key such as "7A" the scores LCA, LAD, LCX, RCA and total."""
    import openpyxl

    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(SHEET_HEADER)
    for key, scores in rows.items():
        sheet.append([key, *scores])
    path = root / NONGATED_FOLDER / SHEET_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    book.save(path)
    book.close()
    return path


def write_slices(folder: Path, patient_id: str, volume: Volume, *, invalid_uids: bool) -> None:
    """Write axial slices, the highest z first, without UIDs or with invalid ones."""
    from pydicom import config
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import UID, CTImageStorage, ExplicitVRLittleEndian, generate_uid

    _check_axial(volume)
    stored = np.rint(volume.hu.astype(np.float64)) - INTERCEPT_HU
    if stored.min() < 0 or stored.max() > MAX_STORED:
        raise ProdmError(f"COCA's slices hold {INTERCEPT_HU} HU and more, got {volume.hu.min()}")
    folder.mkdir(parents=True, exist_ok=True)
    num_slices = volume.shape[0]
    for number in range(1, num_slices + 1):
        z = num_slices - number
        dataset = Dataset()
        dataset.file_meta = FileMetaDataset()
        dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        dataset.file_meta.MediaStorageSOPClassUID = CTImageStorage
        dataset.SOPClassUID = CTImageStorage
        dataset.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
        dataset.StudyDate = STUDY_DATE
        dataset.Modality = "CT"
        dataset.PatientID = patient_id
        dataset.KVP = 120
        dataset.SliceThickness = f"{volume.spacing_mm[0]:.6g}"
        dataset.InstanceNumber = number
        position = volume.grid.position_xyz_mm((z, 0, 0))
        dataset.ImagePositionPatient = [f"{value:.6f}" for value in position]
        dataset.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        dataset.PixelSpacing = [f"{value:.6g}" for value in volume.spacing_mm[1:]]
        dataset.SamplesPerPixel = 1
        dataset.PhotometricInterpretation = "MONOCHROME2"
        dataset.Rows, dataset.Columns = volume.shape[1:]
        dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 16, 15
        dataset.PixelRepresentation = 0
        dataset.RescaleIntercept, dataset.RescaleSlope = INTERCEPT_HU, 1
        dataset.PixelData = stored[z].astype("<u2").tobytes()
        uids = {"SOPInstanceUID": str(generate_uid(entropy_srcs=[patient_id, str(number)]))}
        if invalid_uids:  # a component that begins with 0 breaks the syntax
            uids = {
                "StudyInstanceUID": f"1.2.840.00{patient_id}.1",
                "SeriesInstanceUID": f"1.2.840.00{patient_id}.1.01",
                "FrameOfReferenceUID": f"1.2.840.00{patient_id}.1.02",
                "SOPInstanceUID": f"1.2.840.00{patient_id}.1.01.0{number}",
            }
        with config.disable_value_validation():
            for keyword, uid in uids.items():
                setattr(dataset, keyword, uid)
            dataset.file_meta.MediaStorageSOPInstanceUID = UID(uids["SOPInstanceUID"])
            dataset.save_as(folder / f"IM-0001-{number:04d}.dcm", enforce_file_format=True)


def images_of_labels(volume: Volume, labels: NDArray[np.uint8]) -> list[dict[str, object]]:
    """Return the entries of ``Images`` in a COCA annotation, one per slice with calcium."""
    if labels.shape != volume.shape:
        raise ProdmError(f"the scan has {volume.shape} voxels but the labels {labels.shape}")
    unknown = sorted(set(np.unique(labels).tolist()) - {0, *Vessel})
    if unknown:
        raise ProdmError(f"labels of calcium are 1 to 5, got {unknown[0]}")
    images: list[dict[str, object]] = []
    for z in np.flatnonzero(labels.any(axis=(1, 2))).tolist():
        rois: list[dict[str, object]] = []
        for vessel in Vessel:
            for pixels in _components(labels[z] == vessel):
                rois.append(_roi(volume, z, pixels, vessel, len(rois)))
        images.append({"ImageIndex": z, "NumberOfROIs": len(rois), "ROIs": rois})
    return images


def outline(pixels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return one closed polygon [N, 2], column and row, around the pixels of a mask [Y, X].

    >>> outline(np.array([[False, False], [False, True]])).tolist()
    [[1.0, 1.5], [0.5, 1.0], [1.0, 0.5], [1.5, 1.0]]
    """
    from skimage.measure import find_contours

    contours = find_contours(np.pad(pixels, 1).astype(float), 0.5, fully_connected="high")
    loops: list[NDArray[np.float64]] = [contour[:-1, ::-1] - 1 for contour in contours]
    if not loops:
        return np.empty((0, 2))
    start = loops[0][0]
    if len(loops) == 1:
        return loops[0]
    path = [*loops[0], start]
    for loop in loops[1:]:
        corner = np.array([loop[0][0], start[1]])  # upright lines cancel without rounding
        path += [corner, *loop, loop[0], corner, start]
    return np.array(path)


def _components(mask: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    from scipy import ndimage

    numbered, count = ndimage.label(mask, structure=np.ones((3, 3)))
    return [numbered == number for number in range(1, count + 1)]


def _roi(
    volume: Volume, z: int, pixels: NDArray[np.bool_], vessel: Vessel, index_in_image: int
) -> dict[str, object]:
    hu = volume.hu[z][pixels].astype(np.float64)
    points_px = outline(pixels)
    points_mm = [volume.grid.position_xyz_mm((z, y, x)) for x, y in points_px]
    center_yx = np.argwhere(pixels).mean(axis=0)
    steps_mm = np.diff(points_mm, axis=0, append=points_mm[:1])
    pixel_mm2 = volume.spacing_mm[1] * volume.spacing_mm[2]
    return {
        "Area": hu.size * pixel_mm2 / MM2_PER_CM2,
        "Center": _text(volume.grid.position_xyz_mm((z, *center_yx))),
        "Dev": float(hu.std()),
        "IndexInImage": index_in_image,
        "Length": float(np.linalg.norm(steps_mm, axis=1).sum() / 10),  # cm
        "Max": float(np.rint(hu.max())),
        "Mean": float(hu.mean()),
        "Min": float(np.rint(hu.min())),
        "Name": ROI_NAMES[vessel],
        "NumberOfPoints": len(points_px),
        "Point_mm": [_text(point) for point in points_mm],
        "Point_px": [_text(point) for point in points_px],
        "Total": float(hu.sum()),
        "Type": CLOSED_POLYGON,
    }


def _text(point: Sequence[float] | NDArray[np.float64]) -> str:
    return "(" + ", ".join(f"{value:.6f}" for value in point) + ")"


def _check_axial(volume: Volume) -> None:
    if not np.allclose(volume.grid.direction, AXIAL, atol=DIRECTION_TOLERANCE):
        raise ProdmError("COCA's slices are axial; turn the volume with to_lps() first")
