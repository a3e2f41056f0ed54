"""Correction by phase without any weights: what classical means can tell of a moving lesion.

What is brighter than its surroundings gives a first e, which lacks most of what is negative, so
that the search looks for the sharpest image. Then, in turns: the peaks of the focused image,
moved again, are what the calcium must look like; what remains of y is smoothed and becomes the
background. The less of what moves the motion explains, the less is changed. Each block has a motion
of its own (``prodm.model.phasing`` has the notation).
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from prodm.calcium import CALCIUM_THRESHOLD_HU
from prodm.model.phasing import Phased, in_focus, trust
from prodm.model.search import SearchSettings, search

SURROUNDINGS_PX = 17  # width of the median that tells what is brighter than its surroundings
BRIGHTER_HU = 40.0
SEED_HU = 100.0  # motion lowers peaks, so calcium is looked for below 130 HU
SEED_BRIGHTER_HU = 70.0
LARGEST_PX = 400  # pixels in a slice: what is larger is bone, or the wall of the heart
REACH_PX = 17  # how far beyond its bright part the calcium may show
BEHIND_PX = 9  # width of the median that smooths the background
FIRST_STEPS = 20  # of the search, while what moves is known only roughly
TRUSTED_ALONE = (0.5, 0.9)  # see ``trust``; without a network to fall back on
PEAK_SHARE = 0.15  # of the largest value: what counts as calcium once it is in focus


def correct_hu_without_weights(blocks_hu: NDArray[np.float32], *, seed: int) -> NDArray[np.float32]:
    """Correct blocks [N, Z, Y, X], in HU, each by itself."""
    generator = torch.Generator().manual_seed(seed)
    corrected: NDArray[np.float32] = torch.stack(
        [
            correct_without_weights(block, SearchSettings(), generator).corrected_hu
            for block in torch.from_numpy(blocks_hu)
        ]
    ).numpy()
    return corrected


def correct_without_weights(
    block_hu: Tensor,
    settings: SearchSettings,
    generator: torch.Generator,
    *,
    num_turns: int = 1,
) -> Phased:
    """Correct one block [Z, Y, X] by classical means alone."""
    hu = block_hu.numpy()
    bright, near = _bright_parts(hu)
    if not bright.any():
        return Phased(block_hu, torch.zeros_like(block_hu), None)
    moving = torch.from_numpy(bright)
    first = replace(settings, num_steps=(1, FIRST_STEPS), least_dips=0.0)  # dips are not seen yet
    motion = search(moving, first, generator)[0]
    for _ in range(num_turns):
        calcium = _peaks(motion.refocus(moving))
        seen = motion.apply(calcium)
        seen = seen * float((seen * moving).sum() / (seen**2).sum().clamp(min=1))
        behind = _median(hu - seen.numpy(), BEHIND_PX)
        moving = torch.from_numpy(np.where(near, hu - behind, 0).astype(np.float32))
        motion = search(moving, settings, generator)[0]
    share = trust(Phased(block_hu, moving, motion).explained, TRUSTED_ALONE)
    return Phased(in_focus(block_hu, moving, motion, share), moving, motion)


def _bright_parts(hu: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return what is much brighter than its surroundings [Z, Y, X], and where that is near.

    Large things are left out, and those that reach the border: they are cut off there, and what
    is cut off cannot be put in focus.
    """
    excess = hu - _surroundings(hu)
    strong = excess > BRIGHTER_HU
    dense = hu >= CALCIUM_THRESHOLD_HU  # the inside of bone is as bright as its surroundings
    labels, count = ndimage.label(strong | dense, np.ones((3, 3, 3)))
    seeds = np.unique(labels[(hu > SEED_HU) & (excess > SEED_BRIGHTER_HU)])
    areas_px = [np.bincount(slice_labels.ravel(), minlength=count + 1) for slice_labels in labels]
    large = np.flatnonzero(np.max(areas_px, axis=0) > LARGEST_PX)
    cut_off = np.unique([*labels[:, [0, -1]].ravel(), *labels[:, :, [0, -1]].ravel()])
    bright = strong & np.isin(labels, np.setdiff1d(seeds, [0, *large, *cut_off]))
    near = ndimage.binary_dilation(bright, np.ones((1, REACH_PX, REACH_PX)))
    return np.where(bright, excess, 0).astype(np.float32), near


def _peaks(still: Tensor) -> Tensor:
    return torch.where(still > PEAK_SHARE * still.max(), still, torch.zeros_like(still))


def _surroundings(hu: NDArray[np.float32]) -> NDArray[np.float32]:
    """Median of every second pixel around each, which is as smooth and ten times as fast."""
    coarse = _median(hu[:, ::2, ::2], SURROUNDINGS_PX // 2 + 1)
    return coarse.repeat(2, axis=1).repeat(2, axis=2)[:, : hu.shape[1], : hu.shape[2]]


def _median(hu: NDArray[np.float32], width_px: int) -> NDArray[np.float32]:
    smoothed: NDArray[np.float32] = ndimage.median_filter(hu, size=(1, width_px, width_px))
    return smoothed
