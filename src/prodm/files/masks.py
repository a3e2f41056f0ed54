"""Masks of calcium or of a region, as vessel labels on a scan's grid.

Labels are those of ``prodm.calcium.Vessel``: 1 LAD, 2 LCX, 3 RCA, 4 LM, 5 unspecified. A
mask that holds nothing but 0 and 1, or 0 and 255, is binary and becomes all 5. So does a
labelled mask in which only the LAD is marked, for nothing tells the two apart.

A mask may store its axes in another order or direction than the scan, as long as its voxels
are the scan's voxels. The frames of a DICOM SEG are placed by their positions; frames that
it leaves out are empty. Segments that name a coronary artery get its label, all others are
unspecified. Fractional segments count from one half on.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset

from prodm.calcium import Vessel
from prodm.errors import ProdmError
from prodm.files.archive import FileSet
from prodm.files.formats import file_format
from prodm.files.nifti import read_nifti_array, read_nrrd_array
from prodm.files.parsing import damage_as, read_dataset
from prodm.files.pixels import decode
from prodm.files.series import SEGMENTATION_CLASSES, numbers
from prodm.files.stack import MAX_VOXELS
from prodm.volume import Grid, Volume

VESSEL_WORDS = (
    (Vessel.LAD, r"\blad\b|left anterior descending"),
    (Vessel.LCX, r"\bl?cx\b|circumflex"),
    (Vessel.RCA, r"\brca\b|right coronary"),
    (Vessel.LM, r"\blm(ca|s)?\b|left main|left coronary artery"),
)
ON_VOXEL = 0.1  # of a voxel: how far a frame may lie from the scan's voxels


def read_mask(path: Path, scan_grid: Grid) -> NDArray[np.uint8]:
    """Return the labels [Z, Y, X], 0 to 5, of a mask on the scan's grid.

    Args:
        path: NIfTI or NRRD file, or a DICOM SEG (a file, or a folder with nothing else).
        scan_grid: the grid of the scan's volume, whose array order the labels take.
    """
    path = _only_file(Path(path))
    kind = file_format(path)
    if kind == "zip":
        raise ProdmError(f"the mask {path} is a zip; unpack it and name the mask itself")
    if kind == "dicom":
        return _read_segmentation(path, scan_grid)
    if kind == "nifti":
        values, grid, _ = read_nifti_array(path)
    else:
        values, grid = read_nrrd_array(path)
    labels = _labels(values, path)
    aligned = _in_order_of(Volume(labels.astype(np.int16), grid), scan_grid)
    difference = scan_grid.mismatch(aligned.grid)
    if difference:
        raise ProdmError(f"the mask {path} is not on the scan's grid: {difference}")
    return aligned.hu.astype(np.uint8)


def vessel_named(text: str) -> Vessel:
    """Return the coronary artery that a segment's name means.

    >>> [vessel_named(name).name for name in ("LAD", "Left main", "calc_RCA", "Lesion 7")]
    ['LAD', 'LM', 'RCA', 'UNSPECIFIED']
    """
    words = re.sub(r"[_\W]+", " ", text.lower())
    for vessel, pattern in VESSEL_WORDS:
        if re.search(pattern, words):
            return vessel
    return Vessel.UNSPECIFIED


def _only_file(path: Path) -> Path:
    """The file itself, or the only file of a folder."""
    if not path.is_dir():
        return path
    files = [file for file in sorted(path.iterdir()) if not file.name.startswith(".")]
    if len(files) != 1:
        raise ProdmError(f"the mask {path} is a folder of {len(files)} files; name the mask itself")
    return files[0]


def _labels(values: NDArray[Any], path: Path) -> NDArray[np.uint8]:
    """Vessel labels of stored values."""
    if values.dtype.kind == "f" and not (
        np.isfinite(values).all() and (values == np.rint(values)).all()
    ):
        raise ProdmError(f"the mask {path} holds fractions; labels are whole numbers, 0 to 5")
    lowest, highest = values.min(), values.max()
    if highest == 255 or (lowest, highest) == (0, 1) or lowest == highest == 1:
        other = (values != 0) & (values != highest)
        if not other.any():
            return np.where(values != 0, np.uint8(Vessel.UNSPECIFIED), np.uint8(0))
    if lowest < 0 or highest > max(Vessel):
        wrong = lowest if lowest < 0 else highest
        raise ProdmError(
            f"the mask {path} holds the label {wrong:g}; labels are 1 LAD, 2 LCX, 3 RCA, 4 LM, "
            "5 unspecified, or 0 and 1 alone for a binary mask"
        )
    return values.astype(np.uint8)


def _in_order_of(volume: Volume, grid: Grid) -> Volume:
    """The volume with its axes in the order and direction nearest to those of a grid."""
    alike = np.asarray(grid.direction).T @ np.asarray(volume.grid.direction)
    partner = np.abs(alike).argmax(axis=1)  # for X, Y, Z of the grid, an axis of the volume
    if sorted(partner) != [0, 1, 2]:
        return volume
    axes = [2 - int(partner[2 - axis]) for axis in range(3)]
    volume = volume.transpose(axes)
    for axis in range(3):
        if alike[2 - axis, partner[2 - axis]] < 0:
            volume = volume.flip(axis)
    return volume


def _read_segmentation(path: Path, scan_grid: Grid) -> NDArray[np.uint8]:
    label = f"the mask {path}"
    with FileSet(path, ("",)).open("") as file:
        dataset = read_dataset(file, label, pixels=True)
    with damage_as(f"{label} is a damaged DICOM file"):
        if str(dataset.get("SOPClassUID", "")) not in SEGMENTATION_CLASSES:
            raise ProdmError(f"{label} is DICOM but no segmentation (SEG)")
        vessels = _vessels_of_segments(dataset)
        groups = _frame_groups(dataset, label)
        is_labelmap = str(dataset.get("SegmentationType", "")) == "LABELMAP"
        threshold = _threshold(dataset)
    labels = np.zeros(scan_grid.shape, dtype=np.uint8)
    frames = decode(dataset, range(len(groups)), label)
    for number, (group, stored) in enumerate(zip(groups, frames, strict=True), start=1):
        with damage_as(f"{label} has damaged functional groups"):
            where = f"frame {number} of {label}"
            if is_labelmap:
                frame = _vessels_of_values(stored, vessels, where)
            else:
                segment = int(_item(group, "SegmentIdentificationSequence").ReferencedSegmentNumber)
                if segment not in vessels:
                    raise ProdmError(f"{where} belongs to a segment that is not described")
                frame = np.where(stored >= threshold, np.uint8(vessels[segment]), np.uint8(0))
            _place(labels, frame, group, scan_grid, where)
    return labels


def _vessels_of_segments(dataset: Dataset) -> dict[int, Vessel]:
    """Vessel of each segment number, by the segment's own words."""
    vessels = {}
    for segment in dataset.SegmentSequence:
        words = [segment.get("SegmentLabel", ""), segment.get("SegmentDescription", "")]
        for keyword in ("SegmentedPropertyTypeCodeSequence", "AnatomicRegionSequence"):
            words += [code.get("CodeMeaning", "") for code in segment.get(keyword) or []]
        named = (vessel_named(str(text)) for text in words)
        known = [vessel for vessel in named if vessel != Vessel.UNSPECIFIED]
        vessels[int(segment.SegmentNumber)] = known[0] if known else Vessel.UNSPECIFIED
    return vessels


def _vessels_of_values(
    stored: NDArray[Any], vessels: dict[int, Vessel], where: str
) -> NDArray[np.uint8]:
    frame = np.zeros(stored.shape, dtype=np.uint8)
    for value in np.unique(stored):
        if value == 0:
            continue
        if int(value) not in vessels:
            raise ProdmError(f"{where} holds segment {value}, which is not described")
        frame[stored == value] = vessels[int(value)]
    return frame


def _threshold(dataset: Dataset) -> float:
    """Stored value from which a voxel belongs to a segment."""
    if str(dataset.get("SegmentationType", "BINARY")) != "FRACTIONAL":
        return 1
    return 0.5 * int(dataset.MaximumFractionalValue)


def _frame_groups(dataset: Dataset, label: str) -> list[Dataset]:
    """For each frame its functional groups, completed by the shared ones."""
    num_frames = int(dataset.get("NumberOfFrames", 1))
    size = num_frames * int(dataset.Rows) * int(dataset.Columns)
    if num_frames < 1 or size > MAX_VOXELS:
        raise ProdmError(f"{label} claims {num_frames} frames, which is absurd")
    per_frame = dataset.get("PerFrameFunctionalGroupsSequence") or []
    if len(per_frame) != num_frames:
        raise ProdmError(f"{label} has {num_frames} frames but places {len(per_frame)} of them")
    shared = (dataset.get("SharedFunctionalGroupsSequence") or [Dataset()])[0]
    groups = []
    for own in per_frame:
        group = Dataset()
        group.update(shared)
        group.update(own)
        groups.append(group)
    return groups


def _item(group: Dataset, keyword: str) -> Dataset:
    items: Iterable[Dataset] = group.get(keyword) or []
    return next(iter(items), Dataset())


def _place(
    labels: NDArray[np.uint8], frame: NDArray[np.uint8], group: Dataset, grid: Grid, where: str
) -> None:
    """Write one frame into the labels, at the voxels that its position names."""
    position = numbers(_item(group, "PlanePositionSequence"), "ImagePositionPatient", 3)
    orientation = numbers(_item(group, "PlaneOrientationSequence"), "ImageOrientationPatient", 6)
    spacing = numbers(_item(group, "PixelMeasuresSequence"), "PixelSpacing", 2)
    if position is None or orientation is None or spacing is None:
        raise ProdmError(f"{where} does not say where it lies")
    inverse = np.linalg.inv(grid.affine[:3, :3])
    per_column = inverse @ (np.array(orientation[:3]) * spacing[1])  # in voxels along X, Y, Z
    per_row = inverse @ (np.array(orientation[3:]) * spacing[0])
    first = np.asarray(grid.index_zyx(position))[::-1]
    far = first + per_row * (frame.shape[0] - 1) + per_column * (frame.shape[1] - 1)
    step_column, step_row, corner = (np.rint(v) for v in (per_column, per_row, first))
    expected = corner + step_row * (frame.shape[0] - 1) + step_column * (frame.shape[1] - 1)
    if np.abs(step_column).sum() != 1 or np.abs(step_row).sum() != 1 or step_column @ step_row:
        raise ProdmError(
            f"{where} is not on the scan's grid: its pixels are {spacing[0]:g} x {spacing[1]:g} mm "
            f"or its axes differ, where the scan's voxels are {grid.spacing_mm} mm (z, y, x)"
        )
    if np.abs(first - corner).max() > ON_VOXEL or np.abs(far - expected).max() > 2 * ON_VOXEL:
        raise ProdmError(f"{where} is not on the scan's grid: it lies between the scan's voxels")
    rows, columns = np.nonzero(frame)
    index = corner[:, None] + step_row[:, None] * rows + step_column[:, None] * columns
    x, y, z = index.astype(int)
    size = np.array(grid.shape[::-1])[:, None]
    both = np.stack([corner, expected], axis=1)
    if (both < 0).any() or (both >= size).any():
        raise ProdmError(
            f"{where} is not on the scan's grid: it reaches beyond the scan's {grid.shape} voxels"
        )
    values, before = frame[rows, columns], labels[z, y, x]
    unspecified = np.uint8(Vessel.UNSPECIFIED)
    named = (values != unspecified) & (before != 0) & (before != unspecified)
    if (named & (values != before)).any():
        raise ProdmError(f"{where} marks voxels that another segment gives to another artery")
    keep = (values == unspecified) & (before != 0)
    labels[z, y, x] = np.where(keep, before, values)
