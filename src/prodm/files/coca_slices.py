"""Which slices a COCA patient's folder holds, from the headers alone.

Some folders hold more than one series, slices twice, or part of a second series. Which of
them was drawn on cannot be known, so nothing is chosen: each case is an error that names it.
"""

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prodm.errors import ProdmError
from prodm.files.coca_xml import SAME_Z_MM
from prodm.volume import Grid

STEP_TOLERANCE = 0.05  # of the slice spacing
HEADER_KEYWORDS = (
    "ImageType",
    "SOPClassUID",
    "Modality",
    "SeriesInstanceUID",
    "ImagePositionPatient",
    "ImageOrientationPatient",
    "PixelSpacing",
    "Rows",
    "Columns",
)


@dataclass(frozen=True)
class CocaSlices:
    """One series by ascending z."""

    folder: Path  # holds the files and no other series
    files: tuple[Path, ...]
    z_mm: tuple[float, ...]
    orientation: tuple[float, ...]
    grid: Grid  # as if axial; see is_axial

    @property
    def is_axial(self) -> bool:
        """Whether rows run to the patient's left and columns to the back."""
        return bool(np.allclose(self.orientation, (1, 0, 0, 0, 1, 0), atol=1e-3))


@dataclass(frozen=True)
class _Header:
    path: Path
    series_uid: str
    position_xyz_mm: tuple[float, ...]
    orientation: tuple[float, ...]
    spacing_yx_mm: tuple[float, ...]
    shape_yx: tuple[int, int]


def read_slices(folder: Path) -> CocaSlices:
    """Return the one series below ``folder``, or say what keeps it from being one."""
    headers = _headers(folder)
    if not headers:
        raise ProdmError("no DICOM image in its folder")
    groups: dict[tuple[Path, str], list[_Header]] = defaultdict(list)
    for header in headers:
        groups[header.path.parent, header.series_uid].append(header)
    if len(groups) > 1:
        raise ProdmError(_several_series(list(groups.values())))
    headers.sort(key=lambda header: header.position_xyz_mm[2])
    spacing_mm = _slice_spacing_mm([header.position_xyz_mm[2] for header in headers])
    first = headers[0]
    for header in headers[1:]:
        if header.shape_yx != first.shape_yx:
            raise ProdmError("its slices differ in rows and columns")
        if not np.allclose(header.spacing_yx_mm, first.spacing_yx_mm, rtol=1e-3):
            raise ProdmError("its slices differ in pixel spacing")
        if not np.allclose(header.orientation, first.orientation, atol=1e-3):
            raise ProdmError("its slices differ in orientation")
        if not np.allclose(header.position_xyz_mm[:2], first.position_xyz_mm[:2], atol=0.1):
            raise ProdmError("its slices do not lie above each other")
    dy, dx = first.spacing_yx_mm
    x, y, z = first.position_xyz_mm
    return CocaSlices(
        folder=first.path.parent,
        files=tuple(header.path for header in headers),
        z_mm=tuple(header.position_xyz_mm[2] for header in headers),
        orientation=first.orientation,
        grid=Grid((len(headers), *first.shape_yx), (spacing_mm, dy, dx), (x, y, z)),
    )


def _several_series(groups: list[list[_Header]]) -> str:
    groups.sort(key=len, reverse=True)
    counts = " and ".join(str(len(group)) for group in groups[:5])
    positions = [
        np.array([header.position_xyz_mm[2] for header in group], dtype=float) for group in groups
    ]
    distances = np.abs(positions[0][:, None] - np.concatenate(positions[1:])[None, :])
    where = "at the same z" if distances.min() <= SAME_Z_MM else "at different z"
    if len(groups[-1]) < len(groups[0]):
        return f"a partial second series {where} ({counts} slices)"
    return f"{len(groups)} series {where} ({counts} slices)"


def _slice_spacing_mm(z_mm: list[float]) -> float:
    if len(z_mm) < 2:
        raise ProdmError("only one slice")
    steps_mm = np.diff(z_mm)
    doubled = np.flatnonzero(steps_mm <= SAME_Z_MM)
    if doubled.size:
        raise ProdmError(f"duplicated z: two slices at {z_mm[doubled[0]]:g} mm")
    spacing_mm = float(np.median(steps_mm))
    uneven = np.flatnonzero(np.abs(steps_mm - spacing_mm) > STEP_TOLERANCE * spacing_mm)
    if uneven.size:
        low, high = z_mm[uneven[0]], z_mm[uneven[0] + 1]
        raise ProdmError(
            f"uneven slices: {high - low:g} mm from z {low:g} to {high:g} mm, "
            f"{spacing_mm:g} mm elsewhere"
        )
    return float(np.mean(steps_mm))


def _headers(folder: Path) -> list[_Header]:
    from pydicom import config

    headers = []
    with config.disable_value_validation():  # COCA's UIDs break the syntax
        for path in _files(folder):
            header = _header(path)
            if header is not None:
                headers.append(header)
    return headers


def _files(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise ProdmError(f"its folder cannot be read: {error.strerror}") from error

    return sorted(
        Path(parent) / name
        for parent, _, names in os.walk(folder, onerror=refuse)
        for name in names
        if not name.startswith(".") and "__MACOSX" not in parent
    )


def _header(path: Path) -> _Header | None:
    """Return what places a slice; None for files that are no slice."""
    import pydicom
    from pydicom.errors import InvalidDicomError

    try:
        dataset = pydicom.dcmread(
            path, stop_before_pixels=True, specific_tags=list(HEADER_KEYWORDS)
        )
        if "Rows" not in dataset or "LOCALIZER" in (dataset.get("ImageType") or ()):
            return None
        if str(dataset.get("Modality", "CT")) != "CT":
            raise ProdmError(f"{path.name} is not CT but {dataset.Modality}")
        for keyword in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"):
            if not dataset.get(keyword):
                raise ProdmError(f"{path.name} has no {keyword}")
        header = _Header(
            path,
            str(dataset.get("SeriesInstanceUID") or ""),
            tuple(float(value) for value in dataset.ImagePositionPatient),
            tuple(float(value) for value in dataset.ImageOrientationPatient),
            tuple(float(value) for value in dataset.PixelSpacing),
            (int(dataset.Rows), int(dataset.Columns)),
        )
    except ProdmError:
        raise
    except InvalidDicomError:
        if path.suffix.lower() == ".dcm":
            raise ProdmError(f"{path.name} is not a DICOM file") from None
        return None
    except OSError as error:
        raise ProdmError(f"cannot read {path.name}: {error.strerror or error}") from error
    except Exception as error:  # a damaged header raises errors of many kinds
        raise ProdmError(f"{path.name} has a damaged header: {error}") from error
    lengths = [len(header.position_xyz_mm), len(header.orientation), len(header.spacing_yx_mm)]
    numbers = (*header.position_xyz_mm, *header.orientation, *header.spacing_yx_mm)
    if lengths != [3, 6, 2] or not np.all(np.isfinite(numbers)):
        raise ProdmError(f"{path.name} states no valid position in the patient")
    return header
