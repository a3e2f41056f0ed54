"""Agatston, volume and mass score of coronary calcium.

A lesion is a connected patch of pixels, within one axial slice and inside the region, that
reach the threshold and together are large enough. It scores area x weight, where the weight
of 1 to 4 follows its peak density. The patient's score is the sum over all lesions (Agatston
et al., J Am Coll Cardiol 15:827, 1990). The method was defined on contiguous 3 mm slices; a
slice at another spacing counts for ``spacing / 3 mm`` of a slice, so that thin slices do not
inflate scores.

    Agatston = sum of area_mm2 x weight x slice factor
    volume   = sum of area_mm2 x slice spacing
    mass     = calibration x mean HU x volume, over the same voxels, never clipped

Published work differs in the details, so a ``Rule`` names them and ``RULES`` holds the sets in
use. A lesion belongs to the vessel that most of its pixels are labelled with (the lower label
where two tie), whole, so that the vessels always sum to the total.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from prodm.calcium import (
    CALCIUM_THRESHOLD_HU,
    REFERENCE_SPACING_MM,
    WEIGHT_STEPS_HU,
    Vessel,
    grade,
)
from prodm.errors import ProdmError
from prodm.volume import Vector, Volume

Connectivity = Literal["diagonal", "edge"]
Thickness = Literal["spacing", "thickness", "none"]
RegionSource = Literal["given", "found"]
Region = NDArray[np.uint8] | NDArray[np.bool_]

CONNECTIVITIES: tuple[Connectivity, ...] = ("diagonal", "edge")
THICKNESSES: tuple[Thickness, ...] = ("spacing", "thickness", "none")
AREA_TOLERANCE_MM2 = 1e-6  # spacing in headers is rounded: nine pixels of 0.3333 mm are 1 mm2
FOUND_REGION_NOTE = (
    "the heart region was found by prodm, not given; calcium of the aorta or the valves "
    "inside it is counted"
)


@dataclass(frozen=True)
class TubeVoltage:
    """What calcium is at one tube voltage."""

    kvp: int
    threshold_hu: float
    weight_steps_hu: tuple[float, ...]


@dataclass(frozen=True)
class Rule:
    """How lesions are found and weighted.

    A pixel is calcium from ``threshold_hu`` on. A lesion counts from ``min_area_mm2`` and
    ``min_pixels`` on; its pixels touch by edges or also by corners ("diagonal"). Its weight is
    ``lowest_weight`` plus one for each of ``weight_steps_hu`` that its peak reaches. A slice
    counts for slice spacing or slice thickness over 3 mm, or wholly ("none"). Where
    ``by_kvp`` is given, threshold and steps follow the tube voltage instead.
    """

    name: str
    threshold_hu: float = CALCIUM_THRESHOLD_HU
    min_area_mm2: float = 1.0
    min_pixels: int = 1
    connectivity: Connectivity = "diagonal"
    thickness: Thickness = "spacing"
    weight_steps_hu: tuple[float, ...] = WEIGHT_STEPS_HU
    lowest_weight: int = 1
    by_kvp: tuple[TubeVoltage, ...] = ()

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold_hu):
            raise ProdmError(f"the calcium threshold must be a number, got {self.threshold_hu}")
        if not (math.isfinite(self.min_area_mm2) and self.min_area_mm2 >= 0):
            raise ProdmError(f"the smallest area must be 0 mm2 or more, got {self.min_area_mm2}")
        if self.min_pixels < 1:
            raise ProdmError(f"a lesion needs at least one pixel, got {self.min_pixels}")
        if self.connectivity not in CONNECTIVITIES:
            raise ProdmError(f"connectivity is diagonal or edge, got {self.connectivity!r}")
        if self.thickness not in THICKNESSES:
            raise ProdmError(f"thickness is spacing, thickness or none, got {self.thickness!r}")

    def at_kvp(self, kvp: float | None) -> "Rule":
        """Return the rule for one tube voltage; a rule for all voltages returns itself."""
        if not self.by_kvp:
            return self
        known = ", ".join(str(voltage.kvp) for voltage in self.by_kvp)
        if kvp is None:
            raise ProdmError(
                f"the rule {self.name} depends on the tube voltage, which this scan does not "
                f"state; give --kvp ({known})"
            )
        for voltage in self.by_kvp:
            if voltage.kvp == kvp:
                return replace(
                    self,
                    threshold_hu=voltage.threshold_hu,
                    weight_steps_hu=voltage.weight_steps_hu,
                    by_kvp=(),
                )
        raise ProdmError(
            f"the rule {self.name} is defined at {known} kV, got {kvp:g} kV; choose another --rule"
        )

    def weight(self, peak_hu: float) -> int:
        """Return the density factor of a lesion with this peak.

        >>> [CLINICAL.weight(hu) for hu in (130, 199, 200, 300, 400)]
        [1, 1, 2, 3, 4]
        """
        return self.lowest_weight + bisect_right(self.weight_steps_hu, peak_hu)

    def slice_factor(self, spacing_mm: float, thickness_mm: float | None) -> float:
        """Return how many slices of 3 mm one slice counts for.

        >>> CLINICAL.slice_factor(spacing_mm=1.5, thickness_mm=None)
        0.5
        """
        if self.thickness == "none":
            return 1.0
        if self.thickness == "spacing":
            return spacing_mm / REFERENCE_SPACING_MM
        if thickness_mm is None:
            raise ProdmError(
                f"the rule {self.name} scales by slice thickness, which this scan does not "
                "state; give --slice-thickness-mm, or --thickness spacing"
            )
        if not (math.isfinite(thickness_mm) and thickness_mm > 0):
            raise ProdmError(f"slice thickness must be positive, got {thickness_mm} mm")
        return thickness_mm / REFERENCE_SPACING_MM


CLINICAL = Rule("clinical")

# Thresholds and steps of CalciumScoring.jl, after Graeni et al. (Eur Heart J Cardiovasc Imaging
# 19:1362, 2018). Pixels must exceed round(378 exp(-0.009 kV)) there, which is one more in whole
# HU; a lesion whose peak stays below the first step weighs nothing.
_CALCIUMSCORING_JL = (
    TubeVoltage(70, 202.0, (207.0, 318.0, 477.0, 636.0)),
    TubeVoltage(80, 185.0, (177.0, 271.0, 408.0, 544.0)),
    TubeVoltage(100, 155.0, (145.0, 222.0, 334.0, 446.0)),
    TubeVoltage(120, 129.0, (130.0, 199.0, 299.0, 399.0)),
    TubeVoltage(135, 113.0, (119.0, 183.0, 274.0, 364.0)),
)

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        CLINICAL,
        Rule("ai-cac", min_area_mm2=0.0, thickness="thickness"),
        Rule("calciumscoring-jl", thickness="none", lowest_weight=0, by_kvp=_CALCIUMSCORING_JL),
        Rule("osirix", min_area_mm2=0.0, thickness="none"),
    )
}


@dataclass(frozen=True)
class Lesion:
    """One calcified patch in one slice; the position is the centre of its pixels, in LPS."""

    slice_index: int
    position_xyz_mm: Vector
    area_mm2: float
    peak_hu: float
    weight: int
    vessel: str
    agatston: float


@dataclass(frozen=True)
class Score:
    """The calcium of one scan. ``per_vessel`` holds the vessels that the region names."""

    agatston: float
    volume_mm3: float
    mass_mg: float | None  # None without a calibration
    rule: Rule
    region_source: RegionSource
    region_voxels: int
    per_vessel: dict[str, float]
    lesions: tuple[Lesion, ...]

    @property
    def grade(self) -> str:
        """Risk grade of the score."""
        return grade(self.agatston)

    def to_json(self) -> dict[str, Any]:
        """Return what ``prodm score --json`` prints."""
        region: dict[str, Any] = {"source": self.region_source, "voxels": self.region_voxels}
        if self.region_source == "found":
            region["note"] = FOUND_REGION_NOTE
        rule = asdict(self.rule)
        del rule["by_kvp"]
        return {
            "agatston": self.agatston,
            "volume_mm3": self.volume_mm3,
            "mass_mg": self.mass_mg,
            "grade": self.grade,
            "rule": {key: list(v) if isinstance(v, tuple) else v for key, v in rule.items()},
            "region": region,
            "per_vessel": dict(self.per_vessel),
            "lesions": [
                asdict(lesion) | {"position_xyz_mm": list(lesion.position_xyz_mm)}
                for lesion in self.lesions
            ],
        }


def score(
    volume: Volume,
    region: Region,
    rule: Rule = CLINICAL,
    *,
    region_source: RegionSource = "given",
    calibration_mg_per_hu_mm3: float | None = None,
    slice_thickness_mm: float | None = None,
    kvp: float | None = None,
) -> Score:
    """Score the calcium of a scan inside a region.

    ``region`` [Z, Y, X] marks the coronary arteries with the labels of ``Vessel``; a boolean one
    is all unspecified. It has no default, because a score over the whole image would count ribs
    and spine. ``calibration_mg_per_hu_mm3`` comes from a phantom scanned like the patient.
    """
    if calibration_mg_per_hu_mm3 is not None and not (
        math.isfinite(calibration_mg_per_hu_mm3) and calibration_mg_per_hu_mm3 > 0
    ):
        raise ProdmError(f"the calibration must be positive, got {calibration_mg_per_hu_mm3}")
    rule = rule.at_kvp(kvp)
    labels = _labels(volume, region)
    factor = rule.slice_factor(volume.spacing_mm[0], slice_thickness_mm)
    found = _find_patches(volume, labels, rule)
    lesions = _lesions(volume, found, rule, factor)
    present = np.bincount(labels.ravel(), minlength=1)[1:]
    mass_mg = None
    if calibration_mg_per_hu_mm3 is not None:
        sum_hu = float(found.values_hu.sum(dtype=np.float64))
        mass_mg = calibration_mg_per_hu_mm3 * sum_hu * volume.grid.voxel_volume_mm3
    return Score(
        agatston=math.fsum(lesion.agatston for lesion in lesions),
        volume_mm3=found.patches.size * volume.grid.voxel_volume_mm3,
        mass_mg=mass_mg,
        rule=rule,
        region_source=region_source,
        region_voxels=int(present.sum()),
        per_vessel={
            Vessel(label).name: math.fsum(
                lesion.agatston for lesion in lesions if lesion.vessel == Vessel(label).name
            )
            for label in (int(label) for label in np.flatnonzero(present) + 1)
        },
        lesions=lesions,
    )


def lesion_labels(
    volume: Volume, region: Region, rule: Rule = CLINICAL, *, kvp: float | None = None
) -> NDArray[np.uint8]:
    """Return the mask [Z, Y, X] of the lesions that are scored, labelled with their vessel."""
    found = _find_patches(volume, _labels(volume, region), rule.at_kvp(kvp))
    mask = np.zeros(volume.shape, dtype=np.uint8)
    mask[found.z, found.y, found.x] = found.vessels[found.patches]
    return mask


@dataclass(frozen=True)
class _Patches:
    """Voxels of all lesions: index, value and number of the lesion; and each lesion's vessel."""

    z: NDArray[np.intp]
    y: NDArray[np.intp]
    x: NDArray[np.intp]
    values_hu: NDArray[Any]
    patches: NDArray[np.intp]  # from 0
    vessels: NDArray[np.uint8]


def _labels(volume: Volume, region: Region) -> NDArray[np.uint8]:
    if region.shape != volume.shape:
        raise ProdmError(f"the scan has {volume.shape} voxels but the region {region.shape}")
    if region.dtype == np.bool_:
        return region.astype(np.uint8) * np.uint8(Vessel.UNSPECIFIED)
    if region.dtype != np.uint8:
        raise ProdmError(f"the region must hold uint8 labels, got {region.dtype}")
    if region.max() > max(Vessel):
        raise ProdmError(
            f"the region's labels are 0 to {max(Vessel):d} (1 LAD, 2 LCX, 3 RCA, 4 LM, "
            f"5 unspecified), got {region.max()}"
        )
    labels: NDArray[np.uint8] = region.view(np.uint8)
    return labels


def _find_patches(volume: Volume, labels: NDArray[np.uint8], rule: Rule) -> _Patches:
    """Find what is a lesion under the rule, in all slices at once."""
    calcium = (volume.hu >= rule.threshold_hu) & (labels > 0)
    window = _bounding_box(calcium)
    in_plane = np.zeros((3, 3, 3), dtype=bool)
    in_plane[1] = ndimage.generate_binary_structure(2, 2 if rule.connectivity == "diagonal" else 1)
    numbered, _ = ndimage.label(calcium[window], structure=in_plane)
    voxels = np.nonzero(numbered)
    patches = numbered[voxels] - 1
    num_pixels = np.bincount(patches)
    pixel_area_mm2 = volume.spacing_mm[1] * volume.spacing_mm[2]
    kept = (num_pixels >= rule.min_pixels) & (
        num_pixels * pixel_area_mm2 >= rule.min_area_mm2 - AREA_TOLERANCE_MM2
    )
    large = kept[patches]
    patches = (np.cumsum(kept) - 1)[patches[large]]
    z, y, x = (index[large] + axis.start for index, axis in zip(voxels, window, strict=True))
    votes = np.bincount(patches * 256 + labels[z, y, x], minlength=256 * int(kept.sum()))
    vessels = votes.reshape(-1, 256).argmax(axis=1).astype(np.uint8)
    return _Patches(z, y, x, volume.hu[z, y, x], patches, vessels)


def _bounding_box(mask: NDArray[np.bool_]) -> tuple[slice, slice, slice]:
    spans = []
    for axes in ((1, 2), (0, 2), (0, 1)):
        used = np.flatnonzero(mask.any(axis=axes))
        spans.append(slice(int(used[0]), int(used[-1]) + 1) if used.size else slice(0, 0))
    return spans[0], spans[1], spans[2]


def _lesions(volume: Volume, found: _Patches, rule: Rule, factor: float) -> tuple[Lesion, ...]:
    num_lesions = found.vessels.size
    if num_lesions == 0:
        return ()
    num_pixels = np.bincount(found.patches)
    centres = np.stack(
        [
            np.bincount(found.patches, weights=axis) / num_pixels
            for axis in (found.z, found.y, found.x)
        ],
        axis=1,
    )
    peaks_hu: Sequence[float] = ndimage.maximum(
        found.values_hu, found.patches, np.arange(num_lesions)
    )
    pixel_area_mm2 = volume.spacing_mm[1] * volume.spacing_mm[2]
    lesions = []
    for centre, pixels, peak_hu, vessel in zip(
        centres, num_pixels, peaks_hu, found.vessels, strict=True
    ):
        area_mm2 = float(pixels) * pixel_area_mm2
        weight = rule.weight(float(peak_hu))
        lesions.append(
            Lesion(
                slice_index=round(centre[0]),
                position_xyz_mm=volume.grid.position_xyz_mm(centre),
                area_mm2=area_mm2,
                peak_hu=float(peak_hu),
                weight=weight,
                vessel=Vessel(vessel).name,
                agatston=area_mm2 * weight * factor,
            )
        )
    return tuple(lesions)
