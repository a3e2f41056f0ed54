"""Calcium drawn by hand in the COCA data set: the XML files and the pixels they mean.

An XML file is an Apple property list: ``Images``, each with an ``ImageIndex`` and ``ROIs``.
The corners of an ROI are strings, ``Point_px`` "(column, row)" and ``Point_mm`` "(x, y, z)".
``Area`` is in cm2 and counts pixels; ``Min``, ``Max`` and ``Mean`` are HU of those pixels.

A pixel belongs to an ROI when its **integer** coordinates lie inside the polygon by the
even-odd rule; a pixel centre is not at + 0.5 here. An edge holds its upper end and not its
lower one, so that two polygons with a common side never share a pixel.
"""

import plistlib
import re
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

import numpy as np
from numpy.typing import NDArray

from prodm.calcium import CALCIUM_THRESHOLD_HU, REFERENCE_SPACING_MM, Vessel, density_weight
from prodm.errors import ProdmError

MAX_XML_BYTES = 64 * 1024 * 1024  # the largest real ones have a few MB
MAX_COORDINATE = 1e6
SAME_Z_MM = 0.01  # rounding of the printed positions stays below
MM2_PER_CM2 = 100.0

VESSEL_NAMES = {
    "left anterior descending artery": Vessel.LAD,
    "left circumflex artery": Vessel.LCX,
    "right coronary artery": Vessel.RCA,
    "left coronary artery": Vessel.LM,
}

_NUMBER = r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)\s*"
_POINT_PX = re.compile(rf"\s*\({_NUMBER},{_NUMBER}\)\s*")
_POINT_MM = re.compile(rf"\s*\({_NUMBER},{_NUMBER},{_NUMBER}\)\s*")


@dataclass(frozen=True, eq=False)
class Roi:
    """One outline in one slice, with the fields that were measured when it was drawn."""

    image_index: int  # rank of the slice by ascending z
    name: str
    points_px: NDArray[np.float64]  # [N, 2], column and row
    z_mm: float
    area_mm2: float
    max_hu: float

    @property
    def vessel(self) -> Vessel:
        """The vessel that the name means; unspecified where it means none."""
        return VESSEL_NAMES.get(" ".join(self.name.split()).casefold(), Vessel.UNSPECIFIED)

    @property
    def agatston(self) -> float:
        """Area times weight, from the fields alone, as on 3 mm slices."""
        if self.max_hu < CALCIUM_THRESHOLD_HU:
            return 0.0
        return self.area_mm2 * density_weight(self.max_hu)


def agatston_of_fields(
    rois: list[Roi], slice_spacing_mm: float = REFERENCE_SPACING_MM
) -> tuple[float, dict[Vessel, float]]:
    """Return the score of the ROI fields alone, in total and by vessel; no image is needed."""
    per_vessel: dict[Vessel, float] = {}
    scale = slice_spacing_mm / REFERENCE_SPACING_MM
    for roi in rois:
        per_vessel[roi.vessel] = per_vessel.get(roi.vessel, 0.0) + roi.agatston * scale
    return sum(per_vessel.values()), per_vessel


def read_rois(path: Path) -> list[Roi]:
    """Return the ROIs of one XML file; entries without points are left out."""
    content = _read_plist(path)
    if not isinstance(content, dict) or not isinstance(content.get("Images"), list):
        raise ProdmError(f"{path.name} holds no list of images, so it is not a COCA annotation")
    rois = []
    for image in content["Images"]:
        if not isinstance(image, dict) or not isinstance(image.get("ROIs", []), list):
            raise ProdmError(f"{path.name}: an entry of Images is not a table of ROIs")
        entries = [entry for entry in image.get("ROIs", []) if not _is_empty(entry, path)]
        if not entries:
            continue
        index = image.get("ImageIndex")
        if type(index) is not int or not 0 <= index < MAX_COORDINATE:
            raise ProdmError(f"{path.name}: ImageIndex must be 0 or more, got {_short(index)}")
        rois += [_roi(entry, index, path) for entry in entries]
    return rois


def _read_plist(path: Path) -> Any:  # noqa: ANN401
    try:
        if path.stat().st_size > MAX_XML_BYTES:
            raise ProdmError(f"{path.name} is larger than {MAX_XML_BYTES >> 20} MB")
        # XML alone: a binary list in disguise is refused, as are entity declarations.
        return plistlib.loads(path.read_bytes(), fmt=plistlib.FMT_XML)
    except OSError as error:
        raise ProdmError(f"cannot read {path.name}: {error.strerror}") from error
    except (
        plistlib.InvalidFileException,
        ExpatError,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:  # plistlib lets all of these through when the list is malformed
        raise ProdmError(f"{path.name} is not a readable XML property list: {error}") from error


def _is_empty(entry: object, path: Path) -> bool:
    if not isinstance(entry, dict):
        raise ProdmError(f"{path.name}: an ROI is not a table but {_short(entry)}")
    return not entry.get("Point_px") and not entry.get("NumberOfPoints")


def _roi(entry: dict[str, Any], image_index: int, path: Path) -> Roi:
    points_px = _points(entry, "Point_px", _POINT_PX, path)
    points_mm = _points(entry, "Point_mm", _POINT_MM, path)
    stated = entry.get("NumberOfPoints", len(points_px))
    if not (stated == len(points_px) == len(points_mm)):
        raise ProdmError(
            f"{path.name}: an ROI of image {image_index} states {_short(stated)} points but "
            f"lists {len(points_px)} in pixels and {len(points_mm)} in mm"
        )
    z_mm = points_mm[:, 2]
    if np.ptp(z_mm) > SAME_Z_MM:
        raise ProdmError(f"{path.name}: an ROI of image {image_index} does not lie in one slice")
    return Roi(
        image_index,
        _name(entry),
        points_px,
        float(z_mm[0]),
        _number(entry, "Area", path) * MM2_PER_CM2,
        _number(entry, "Max", path),
    )


def _points(
    entry: dict[str, Any], key: str, pattern: re.Pattern[str], path: Path
) -> NDArray[np.float64]:
    texts = entry.get(key)
    if not isinstance(texts, list) or not texts:
        raise ProdmError(f"{path.name}: an ROI has points but no list {key}")
    rows = []
    for text in texts:
        match = pattern.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ProdmError(f"{path.name}: {key} holds {_short(text)}, which is not a point")
        rows.append([float(number) for number in match.groups()])
    points = np.array(rows, dtype=np.float64)
    if not np.all(np.abs(points) <= MAX_COORDINATE):
        raise ProdmError(f"{path.name}: {key} holds a coordinate beyond any image")
    return points


def _number(entry: dict[str, Any], key: str, path: Path) -> float:
    value: Any = entry.get(key)
    if type(value) not in (int, float) or not abs(value) < MAX_COORDINATE:
        raise ProdmError(f"{path.name}: {key} of an ROI must be a number, got {_short(value)}")
    return float(value)


def _name(entry: dict[str, Any]) -> str:
    name = entry.get("Name")
    return name.strip() if isinstance(name, str) else _short(name)


def _short(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # Python does not print integers of thousands of digits
        return "a number beyond reason"


def pixels_inside(points_px: NDArray[np.float64], shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the mask [Y, X] of the pixels whose integer coordinates lie in the polygon.

    A pixel is inside when a ray from it to the right crosses the outline an odd number of
    times. Parts of the polygon outside the image are cut off.

    >>> square = np.array([[0.5, 0.5], [2.5, 0.5], [2.5, 1.5], [0.5, 1.5]])
    >>> pixels_inside(square, (3, 4)).astype(int)
    array([[0, 0, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 0, 0]])
    """
    inside = np.zeros(shape, dtype=bool)
    if points_px.size == 0:
        return inside
    starts, ends = points_px, np.roll(points_px, 1, axis=0)
    first = max(0, int(np.ceil(points_px[:, 1].min())))
    last = min(shape[0] - 1, int(np.floor(points_px[:, 1].max())))
    for y in range(first, last + 1):
        crossed = (starts[:, 1] <= y) != (ends[:, 1] <= y)
        (x1, y1), (x2, y2) = starts[crossed].T, ends[crossed].T
        crossings = (x2 - x1) * (y - y1) / (y2 - y1) + x1
        for count in np.clip(np.ceil(crossings), 0, shape[1]).astype(int):
            inside[y, :count] ^= True  # a crossing toggles every pixel to its left
    return inside
