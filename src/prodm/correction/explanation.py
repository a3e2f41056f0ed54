"""Does a motion explain the input from the correction? Asked of the two images alone.

Motion turns the phases of what moves and leaves their magnitudes (``prodm.physics.phase``). So
if a correction is right, some s(theta) leads from its calcium back to what was seen. The method
that made it does not matter: only the block before and after is looked at.

    still    the calcium of the corrected block over the tissue around it
    moving   still + (before - after), near calcium; what did not change cancels, noise included

The motion and what it leaves over come from ``prodm.physics.fitting``: the residual is 0 where a
motion explains everything, 1 where calcium was deleted or invented, and small where little
changed. The energy of grain that a correction changed, as seen away from calcium, is taken off.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from prodm.errors import ProdmError
from prodm.physics.fitting import SMOOTHING_PX, fit_motion
from prodm.volume import Hounsfield

Block = NDArray[np.float32]
Mask = NDArray[np.bool_]

UNEXPLAINED = 0.4  # a residual above it is worth a warning; see docs/correction.md

TISSUE_HU = (-100.0, 100.0)  # what counts as tissue around is clipped to this range
TISSUE_PX = 8.0
WEAK_HU, WEAK_CONTRAST_HU = 80.0, 40.0  # calcium reaches this, smoothed ...
SEED_HU, SEED_CONTRAST_HU = 100.0, 60.0  # ... and this somewhere
CHANGED_HU = 20.0  # calcium whose smoothed HU change less was left as it is
HALO_PX = 3  # a lesion's blur beyond its bright part
FILL_PX = 4.0
ABOVE_HU = 20.0  # tissue behind a lesion is brighter than the tissue around by no more
REACH_PX = 15  # what is farther from calcium is not looked at

TOUCHING = np.ones((3, 3, 3), dtype=bool)


@dataclass(frozen=True)
class Explanation:
    """The motion that leads best from a correction to its input, and what it leaves over."""

    residual: float  # 0, all explained, to 1, nothing
    angles_deg: tuple[float, ...]  # of the views, from the start of the scan on
    shift_mm: tuple[float, ...]  # s at those angles

    @property
    def largest_mm(self) -> float:
        """How far the calcium was seen from its corrected place at most, along a view."""
        return max(abs(shift) for shift in self.shift_mm)

    def to_json(self) -> dict[str, Any]:
        """Return the entry of ``result.json``."""
        return {
            "residual": round(self.residual, 4),
            "angles_deg": [round(angle, 3) for angle in self.angles_deg],
            "shift_mm": [round(shift, 3) for shift in self.shift_mm],
        }


def explain(block_hu: Hounsfield, corrected_hu: Hounsfield, pixel_mm: float) -> Explanation | None:
    """Return the motion that best explains a block [Z, Y, X] from its correction.

    None where no calcium changed.
    """
    if block_hu.shape != corrected_hu.shape or block_hu.ndim != 3:
        raise ProdmError(
            "input and correction must be blocks [Z, Y, X] of one shape, got "
            f"{block_hu.shape} and {corrected_hu.shape}"
        )
    before, after = block_hu.astype(np.float32), corrected_hu.astype(np.float32)
    change = before - after
    if not change.any():
        return None
    seen, lesions = _changed_calcium(before, after)
    if not (seen | lesions).any():
        return None
    still = _excess(before, after, lesions)
    near = _grown(seen | lesions, REACH_PX)
    moving = np.where(near, change + still, 0)
    motion = fit_motion(moving, still, _grain_energy(change, near))
    angles_deg = np.rad2deg(motion.angles_rad)
    shift_mm = motion.shift_px * pixel_mm
    return Explanation(motion.residual, tuple(angles_deg.tolist()), tuple(shift_mm.tolist()))


def _changed_calcium(before: Block, after: Block) -> tuple[Mask, Mask]:
    """Return the calcium of both blocks, without the pieces that did not change."""
    seen, lesions = _bright(before), _bright(after)
    pieces, count = ndimage.label(seen | lesions, TOUCHING)
    largest = ndimage.maximum(np.abs(_smooth(before - after)), pieces, np.arange(count + 1))
    changed = np.asarray(largest) >= CHANGED_HU
    changed[0] = False
    return seen & changed[pieces], lesions & changed[pieces]


def _bright(hu: Block) -> Mask:
    """Return the connected voxels that stand above the tissue around, where some do clearly."""
    smooth = _smooth(hu)
    contrast = smooth - _smooth(np.clip(hu, *TISSUE_HU), TISSUE_PX)
    weak = (smooth >= WEAK_HU) & (contrast >= WEAK_CONTRAST_HU)
    pieces, _ = ndimage.label(weak, TOUCHING)
    seeds = np.unique(pieces[weak & (smooth >= SEED_HU) & (contrast >= SEED_CONTRAST_HU)])
    bright: Mask = np.isin(pieces, seeds) & weak
    return bright


def _excess(before: Block, after: Block, lesions: Mask) -> Block:
    """Return what lesions and their halo add to the tissue behind them.

    Behind a lesion lies the tissue of its surroundings, or what the input shows there if that
    is darker.
    """
    taken = _grown(lesions, HALO_PX)
    weight = _smooth((~taken).astype(np.float32), FILL_PX)
    around = _smooth(np.where(taken, 0, after), FILL_PX) / np.maximum(weight, np.float32(1e-3))
    tissue = np.minimum(around + np.float32(ABOVE_HU), _smooth(before))
    excess: Block = np.where(taken, after - tissue, 0)
    return excess


def _smooth(hu: Block, sigma_px: float = SMOOTHING_PX) -> Block:
    smoothed: Block = ndimage.gaussian_filter(hu, (0, sigma_px, sigma_px), mode="nearest")
    return smoothed


def _grown(mask: Mask, radius_px: int) -> Mask:
    """Return all pixels within a radius of a mask, slice by slice."""
    distance_px = [
        ndimage.distance_transform_edt(~part) if part.any() else np.full(part.shape, np.inf)
        for part in mask
    ]
    grown: Mask = np.stack(distance_px) <= radius_px
    return grown


def _grain_energy(change: Block, near: Mask) -> float:
    """Energy, near calcium, of the grain that changed; judged by what changed elsewhere."""
    away = _smooth(change)[~near]
    if away.size == 0:
        return 0.0
    return float((1.4826 * np.median(np.abs(away))) ** 2 * np.count_nonzero(near))
