"""Scans that should not be corrected, each with the reason.

A concern can be overridden by somebody who knows better (``--force``): it then becomes a
warning. Blood without contrast medium lies at 30 to 60 HU; with it, at 100 and more, where it
counts as a candidate everywhere. Blood and muscle are judged by the median of the region's
depth, so a mask that only hugs the arteries cannot be judged.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from prodm.correction.candidates import bounding_box
from prodm.volume import Vector, Volume

Mask = NDArray[np.bool_]

DEPTH_MM = 10.0  # below the region's surface there is blood and muscle
LEAST_DEEP_MM3 = 5000.0
CONTRAST_HU = 100.0
CONTRAST_WITH_HEADER_HU = 80.0  # where the header notes a contrast agent
BLOOD_HU = (-20.0, 600.0)  # beyond, the numbers are no HU
LOWEST_HU = -200.0  # a chest scan holds air and fat below
USABLE_SLICE_MM = (0.4, 6.0)
USABLE_PIXEL_MM = (0.15, 1.5)


def scan_concerns(volume: Volume, num_slices: int) -> tuple[str, ...]:
    """Return the reasons not to correct a scan, whatever the region, one sentence each.

    ``num_slices`` is how many slices the corrector looks at together.
    """
    found = (
        _spacing_concern(volume.spacing_mm),
        _slices_concern(volume.shape[0], num_slices),
        _hu_concern(volume),
    )
    return tuple(sentence for sentence in found if sentence is not None)


def blood_concerns(volume: Volume, region: Mask, contrast_agent: str | None) -> tuple[str, ...]:
    """Return the reason not to correct a scan that its heart [Z, Y, X] shows, or nothing.

    ``contrast_agent`` is what the header notes; it supports what is measured.
    """
    sentence = _blood_concern(blood_hu(volume, region), contrast_agent)
    return () if sentence is None else (sentence,)


def blood_hu(volume: Volume, region: Mask) -> float | None:
    """Return the median HU deep in the region, or None where it has no depth."""
    if not region.any():
        return None
    window = bounding_box(region, 0.0, volume.spacing_mm)
    thin = tuple(max(1, round(3.0 / s)) for s in volume.spacing_mm)
    coarse = (slice(None, None, thin[0]), slice(None, None, thin[1]), slice(None, None, thin[2]))
    mask = np.pad(region[window][coarse], 1)
    step_mm = [s * n for s, n in zip(volume.spacing_mm, thin, strict=True)]
    depth_mm = ndimage.distance_transform_edt(mask, sampling=step_mm)[1:-1, 1:-1, 1:-1]
    deep = depth_mm > DEPTH_MM
    if deep.sum() * float(np.prod(step_mm)) < LEAST_DEEP_MM3:
        return None
    return float(np.median(volume.hu[window][coarse][deep]))


def region_warnings(volume: Volume, region: Mask) -> tuple[str, ...]:
    """Say where a given region is too tight for calcium that a correction moves."""
    if blood_hu(volume, region) is not None or not region.any():
        return ()
    return (
        "the region is thin: calcium that the correction moves out of it is not scored, and "
        "contrast in the blood cannot be judged; a mask of the heart is safer",
    )


def _spacing_concern(spacing_mm: Vector) -> str | None:
    slice_mm, *pixel_mm = spacing_mm
    low, high = USABLE_SLICE_MM
    if not low <= slice_mm <= high:
        return (
            f"slices must be {low:g} to {high:g} mm apart, got {slice_mm:.3g} mm; use a thinner or "
            "thicker reconstruction"
        )
    low, high = USABLE_PIXEL_MM
    if not low <= min(pixel_mm) <= max(pixel_mm) <= high:
        return (
            f"pixels must measure {low:g} to {high:g} mm, got {pixel_mm[0]:.3g} x "
            f"{pixel_mm[1]:.3g} mm; reconstruct the scan with another field of view"
        )
    if max(pixel_mm) > 1.02 * min(pixel_mm):
        return (
            f"pixels must be square, got {pixel_mm[0]:.3g} x {pixel_mm[1]:.3g} mm; resample the "
            "scan first"
        )
    return None


def _slices_concern(count: int, num_slices: int) -> str | None:
    if count >= num_slices:
        return None
    return (
        f"the correction looks at {num_slices} slices together, and this scan has {count}; give "
        "the whole series"
    )


def _hu_concern(volume: Volume) -> str | None:
    lowest = float(volume.hu.min())
    if lowest > LOWEST_HU:
        return (
            f"a chest CT in Hounsfield units holds air and fat below {LOWEST_HU:g}, and the "
            f"lowest value here is {lowest:g}; convert the scan to HU"
        )
    return None


def _blood_concern(hu: float | None, contrast_agent: str | None) -> str | None:
    if hu is None:
        if contrast_agent:
            return (
                "a contrast agent is noted in the scan, and enhanced blood looks like calcium; "
                "use a scan without contrast"
            )
        return None
    if not BLOOD_HU[0] <= hu <= BLOOD_HU[1]:
        return (
            f"blood and muscle of the heart measure 30 to 60 HU, and the region's median is "
            f"{hu:.0f}; check that the values are HU and that the region is the heart"
        )
    if hu > (CONTRAST_WITH_HEADER_HU if contrast_agent else CONTRAST_HU):
        return (
            f"the blood is contrast-enhanced (median {hu:.0f} HU in the heart), and enhanced "
            "blood looks like calcium; use a scan without contrast"
        )
    return None
