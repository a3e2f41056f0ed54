"""Which lesions can be believed, of those that were seen in focus where tissue rests.

A focuser may see calcium in tissue that a motion smeared, and more so where the motion is wrong.
Four things tell a lesion: the image is smoother without it as it moves (``prodm.model.clearing``),
something is missing where it rests (``prodm.model.resting``), its motion was seen in many blocks,
and it is dense for its size. Their weights were fitted to lesions of phantoms.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor
from torch.nn import functional

from prodm.model.clearing import roughness
from prodm.model.motions import BESIDE_PX, FoundMotion
from prodm.model.placing import LESION_HU

# Of a lesion where tissue rests: log-odds that it is one, fitted to 598 lesions of patients for
# choices. The first five count the logarithms of the gain in HU and of the blocks that move alike,
# the gap as it is, and the logarithms of the peak in HU and of the number of voxels.
GAIN, ALIKE, GAP, PEAK, VOXELS, NONE = 1.63, 0.84, 0.89, 1.73, -1.88, -13.17
LEAST_LOG_ODDS = -0.6  # to take a true one for none costs more than the other way round
LEAST_BELIEF = 4.5  # of gain and gap alone
GAP_SLICES = 2  # beyond a lesion that a placer may look at, and does not tell of
FEW_ALIKE = 2  # with so few, a wrong motion may make a large and faint lesion of tissue
LARGE_VOXELS = 90
FAINT_HU, FAINT_HU_PER_VOXEL = 270.0, 1 / 6


def believed(
    block_hu: Tensor,
    lesion_hu: Tensor,
    motion: FoundMotion,
    gaps: Callable[[Tensor], Tensor],
    num_alike: int,
) -> Tensor:
    """Return the lesions at rest [Z, Y, X] that can be believed, of those seen in a block.

    Each is judged by itself: a dense lesion must not vouch for a speck that is none. It is believed
    by what the image gains in smoothness without it as it moves, in HU, by the log-odds that
    something is missing where it rests, in the slice that shows it best, over the lesion and what
    lies beside it, by how many blocks its motion was seen in, and by how dense it is for its size.
    All others are taken away before.
    """
    labels, count = ndimage.label((lesion_hu > LESION_HU).numpy(), structure=np.ones((3, 3, 3)))
    if not count:
        return torch.zeros_like(lesion_hu)
    left = block_hu - motion.apply(lesion_hu)
    log_odds = torch.zeros_like(left)
    slices = np.flatnonzero(labels.any(axis=(1, 2)))
    near = slice(max(0, int(slices[0]) - GAP_SLICES), int(slices[-1]) + 1 + GAP_SLICES)
    log_odds[near] = gaps(left[None, near])[0]
    smooth = roughness(left)
    grown = ndimage.grey_dilation(labels, size=(1, BESIDE_PX, BESIDE_PX))
    around = torch.from_numpy(np.where(labels, labels, grown))
    kept = torch.zeros_like(lesion_hu)
    for number, pixels in enumerate(ndimage.find_objects(labels), start=1):
        lesion = torch.from_numpy(labels == number)
        held = slice(pixels[0].start, pixels[0].stop)
        beside = functional.max_pool2d(lesion[held].float(), BESIDE_PX, 1, BESIDE_PX // 2)
        missing = (beside * log_odds[held]).sum(dim=(1, 2)) / beside.sum(dim=(1, 2))
        one = torch.where(around == number, lesion_hu, 0.0)
        gained_hu = float(roughness(left + motion.apply(one)) - smooth)
        seen = SeenLesion(gained_hu, float(missing.max()), float(one.max()), int(lesion.sum()))
        if is_believed(seen, num_alike):
            kept = kept + one
    return kept


@dataclass(frozen=True)
class SeenLesion:
    """What tells whether a lesion is one."""

    gained_hu: float  # what the image gains in smoothness without it
    gap: float  # log-odds that something is missing where it rests
    peak_hu: float
    num_voxels: int


def is_believed(lesion: SeenLesion, num_alike: int) -> bool:
    """Tell whether a lesion can be believed, in a scan of which so many blocks move alike.

    >>> lesion = SeenLesion(gained_hu=1000.0, gap=-1.9, peak_hu=300.0, num_voxels=80)
    >>> is_believed(lesion, num_alike=1), is_believed(lesion, num_alike=9)
    (False, True)
    """
    gain = math.log(max(lesion.gained_hu, 1.0))
    large = lesion.num_voxels >= LARGE_VOXELS and num_alike <= FEW_ALIKE
    if large and lesion.peak_hu < FAINT_HU + FAINT_HU_PER_VOXEL * lesion.num_voxels:
        return False
    log_odds = NONE + GAIN * gain + GAP * lesion.gap + ALIKE * math.log(max(num_alike, 1))
    log_odds += PEAK * math.log(lesion.peak_hu) + VOXELS * math.log(lesion.num_voxels)
    return log_odds >= LEAST_LOG_ODDS and gain + lesion.gap >= LEAST_BELIEF
