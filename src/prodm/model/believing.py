"""Which lesions can be believed, of those that were seen in focus where tissue rests.

A focuser may see calcium in tissue that a motion smeared, and more so where the motion is wrong.
What tells a lesion: the image is smoother without it as it moves, and not only where it is rough
anyway (``prodm.model.clearing``); something is missing where it rests (``prodm.model.resting``);
its motion was seen in many blocks; it is dense for its size; it does not pass through air, and
lies in tissue. Their weights were fitted to lesions of phantoms.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor
from torch.nn import functional

from prodm.model.clearing import smoother, smoother_for_its_tissue
from prodm.model.motions import BESIDE_PX, FoundMotion
from prodm.model.placing import LESION_HU

GAP_SLICES = 2  # beyond a lesion that a placer may look at, and does not tell of
AIR_HU = -300.0  # what is darker is air
MOST_TISSUE_HU = 150.0  # more, or less, counts no more
LEAST_SHARE = 0.001

# The log-odds that a lesion is one: what each part of ``SeenLesion.parts`` counts, fitted to
# lesions of patients for choices.
WEIGHTS = {
    "none": -5.59,
    "gain": 2.934,
    "alike": 1.043,
    "gap": 0.712,
    "peak": 2.29,
    "voxels": -2.265,
    "share": -2.349,
    "air": -4.76,
    "tissue": 0.486,
}
LEAST_LOG_ODDS = 0.5  # to take a false lesion for a true one costs more than the other way round


def believed(
    block_hu: Tensor,
    lesion_hu: Tensor,
    motion: FoundMotion,
    gaps: Callable[[Tensor], Tensor],
    num_alike: int,
) -> Tensor:
    """Return the lesions at rest [Z, Y, X] that can be believed, of those seen in a block.

    Each is judged by itself: a dense lesion must not vouch for a speck that is none. The gap is
    that of the slice that shows it best, over the lesion and what lies beside it. All others are
    taken away before.
    """
    labels, count = ndimage.label((lesion_hu > LESION_HU).numpy(), structure=np.ones((3, 3, 3)))
    if not count:
        return torch.zeros_like(lesion_hu)
    mover = motion.mover(lesion_hu)
    along_z = 0.0 if motion.slice_shift is None else float(motion.slice_shift.abs().max())
    reach = math.ceil(along_z) + 1
    left = block_hu - mover.apply(lesion_hu)
    log_odds = torch.zeros_like(left)
    slices = np.flatnonzero(labels.any(axis=(1, 2)))
    near = slice(max(0, int(slices[0]) - GAP_SLICES), int(slices[-1]) + 1 + GAP_SLICES)
    log_odds[near] = gaps(left[None, near])[0]
    grown = ndimage.grey_dilation(labels, size=(1, BESIDE_PX, BESIDE_PX))
    around = torch.from_numpy(np.where(labels, labels, grown))
    kept = torch.zeros_like(lesion_hu)
    for number, pixels in enumerate(ndimage.find_objects(labels), start=1):
        lesion = torch.from_numpy(labels == number)
        held = slice(pixels[0].start, pixels[0].stop)
        beside = functional.max_pool2d(lesion[held].float(), BESIDE_PX, 1, BESIDE_PX // 2)
        missing = (beside * log_odds[held]).sum(dim=(1, 2)) / beside.sum(dim=(1, 2))
        one = torch.where(around == number, lesion_hu, 0.0)
        reached = slice(max(0, held.start - reach), held.stop + reach)
        moves, behind = mover.apply(one[reached]), left[reached]
        passes = moves.clamp(min=0)
        seen = SeenLesion(
            gain=smoother_for_its_tissue(behind + moves, behind),
            share=smoother(behind + moves, moves)[1],
            gap=float(missing.max()),
            peak_hu=float(one.max()),
            num_voxels=int(lesion.sum()),
            air=float(passes[block_hu[reached] < AIR_HU].sum() / passes.sum().clamp(min=1)),
            tissue_hu=float(left[lesion].mean()),
        )
        if is_believed(seen, num_alike):
            kept = kept + one
    return kept


@dataclass(frozen=True)
class SeenLesion:
    """What tells whether a lesion is one."""

    gain: float  # what the image gains in smoothness without it, for its tissue
    share: float  # and all in all, as a share of what it could add
    gap: float  # log-odds that something is missing where it rests
    peak_hu: float
    num_voxels: int
    air: float  # share of it that passes through air as it moves
    tissue_hu: float  # mean of what is left where it rests

    def parts(self, num_alike: int) -> dict[str, float]:
        """Return what counts, of a scan of which so many blocks move alike."""
        tissue_hu = min(max(self.tissue_hu, -MOST_TISSUE_HU), MOST_TISSUE_HU)
        return {
            "none": 1.0,
            "gain": math.log(max(self.gain, 1.0)),
            "alike": math.log(max(num_alike, 1)),
            "gap": self.gap,
            "peak": math.log(self.peak_hu),
            "voxels": math.log(self.num_voxels),
            "share": math.log(max(self.share, LEAST_SHARE) / LEAST_SHARE),
            "air": self.air,
            "tissue": tissue_hu / 100,
        }


def is_believed(lesion: SeenLesion, num_alike: int) -> bool:
    """Tell whether a lesion can be believed, in a scan of which so many blocks move alike.

    >>> lesion = SeenLesion(200.0, 0.2, -1.9, 300.0, 80, 0.0, 20.0)
    >>> is_believed(lesion, num_alike=1), is_believed(lesion, num_alike=9)
    (False, True)
    """
    log_odds = sum(WEIGHTS[name] * value for name, value in lesion.parts(num_alike).items())
    return log_odds >= LEAST_LOG_ODDS
