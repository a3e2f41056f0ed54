"""What ProDM after the phase learns from: scans of training patients that were corrected by phase.

All blocks of a scan move alike, as the simulator has it, and are corrected together as the scan of
a patient would be. A search takes most of the time of that, so in ``NEAR_SHARE`` of the scans the
motion is the true one with an error of the size that a search leaves (``nearly``); its place is
found in all of them, with all errors. What is put back is judged less strictly than in a correction
without a network, which is to learn what not to believe. What is kept of a scan are its blocks in
which something was put back, one after the other:

    views       [6, S, Y, X]  what the network sees (``prodm.model.finishing``)
                              in HU, log-odds in hundredths and odds in thousandths
    still       [S, Y, X]     the true calcium over its background, in HU
    background  [S, Y, X]     in HU
    block       [S]           the block of each slice
    spacing_mm  [3]

Slices are those with calcium, or with what was taken for it, and one more on either side.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from prodm.calcium import CALCIUM_THRESHOLD_HU
from prodm.errors import ProdmError
from prodm.model import normalise
from prodm.model.consistency import LOOSE, look_last
from prodm.model.finding import is_calcium
from prodm.model.finishing import LESION, LESION_HU, VIEWS
from prodm.model.losses import Batch, lesion_neighbourhoods
from prodm.model.motions import FoundMotion
from prodm.model.phasing import (
    STILL_HU,
    Phased,
    Separator,
    correct_in_place,
    correct_scan,
    may_move,
    separate_by_network,
)
from prodm.model.search import SearchSettings
from prodm.pairs.blocks import BLOCK_SHAPE, MARGIN
from prodm.training.findings import as_int16, in_units, nearly
from prodm.training.windows import MOST_TRIES, Block, WindowSettings, drawn_motion, mirror

NEAR_SHARE = 0.75
MOST_BLOCKS = 6  # of a scan
UNITS = np.array([1.0, 1.0, 1.0, 1.0, 0.01, 0.001], dtype=np.float32)  # of the views that are kept


@dataclass(frozen=True, eq=False)
class Correction:
    """What was put back in the blocks of one scan; images are int16."""

    views: NDArray[np.int16]
    still: NDArray[np.int16]
    background: NDArray[np.int16]
    block: NDArray[np.int16]
    spacing_mm: NDArray[np.float32]

    @property
    def slices(self) -> NDArray[np.intp]:
        """Slices to learn from: those with calcium, or with what was taken for it."""
        bright = np.maximum(self.still, self.views[LESION]).max(axis=(1, 2))
        return np.flatnonzero(bright > LESION_HU)


def draw_correction(
    blocks: Sequence[Block], separator: Separator, settings: WindowSettings, seed: Sequence[int]
) -> Correction:
    """Move scans until something was put back in one."""
    by_scan: dict[str, list[Block]] = {}
    for block in blocks:
        by_scan.setdefault(block.row.scan, []).append(block)
    scans = [scan for scan in by_scan.values() if any(len(one.calcium_slices) for one in scan)]
    for attempt in range(MOST_TRIES):
        rng = np.random.default_rng([*seed, attempt])
        corrected = correct_moved(scans[int(rng.integers(len(scans)))], separator, settings, rng)
        if corrected is not None:
            return corrected
    raise ProdmError(f"nothing moved in {MOST_TRIES} scans; is this the right separator?")


def correct_moved(
    scan: Sequence[Block], separator: Separator, settings: WindowSettings, rng: np.random.Generator
) -> Correction | None:
    """Move the blocks of a scan and correct them; None where nothing was put back."""
    chosen = [scan[n] for n in rng.permutation(len(scan))[:MOST_BLOCKS]]
    mirrors = rng.random(3) < 0.5
    still, background = (
        torch.stack(
            [
                torch.from_numpy(mirror(getattr(one, name), mirrors).astype(np.float32))
                for one in chosen
            ]
        )
        for name in ("still", "background")
    )
    true = drawn_motion(chosen[0], settings, rng)
    calcium = still - background
    moved = torch.stack(
        [
            tissue + true.apply(lesion) if lesion.any() else tissue
            for tissue, lesion in zip(background, calcium, strict=True)
        ]
    )
    y, x = rng.integers(0, 2 * np.array(MARGIN[1:]) + 1)
    depth, height, width = BLOCK_SHAPE
    cut = (slice(None), slice(MARGIN[0], MARGIN[0] + depth), slice(y, y + height))
    inner = (*cut, slice(x, x + width))
    separator = replace(separator, limits=LOOSE)
    if rng.random() < NEAR_SHARE:
        phased = _correct_nearly(moved[inner], separator, nearly(true, rng)[0])
    else:
        generator = torch.Generator().manual_seed(0)  # a reader leaves nothing to draw
        phased = correct_scan(moved[inner], separator, SearchSettings(), generator)
    parts = [
        _kept(
            n, look_last(moved[inner][n], one, separator), calcium[inner][n], background[inner][n]
        )
        for n, one in enumerate(phased)
        if one.lesion_hu is not None
    ]
    if not parts:
        return None
    names = parts[0].keys()
    joined = {
        name: np.concatenate([part[name] for part in parts], axis=1 if name == "views" else 0)
        for name in names
    }
    return Correction(**joined, spacing_mm=np.array(chosen[0].row.spacing_mm, dtype=np.float32))


def _correct_nearly(
    blocks: torch.Tensor, separator: Separator, motion: FoundMotion
) -> list[Phased]:
    """Correct blocks [N, Z, Y, X] by a motion whose place is not known, where it moves calcium."""
    seen = separate_by_network(blocks, separator)
    moving = blocks - seen.background_hu
    motions = [motion if may_move(one) and is_calcium(one, motion) else None for one in moving]
    if not any(one is not None for one in motions):
        return [Phased(block, one, None) for block, one in zip(blocks, moving, strict=True)]
    return correct_in_place(blocks, moving, seen.still_hu / STILL_HU, motions, separator)


def _kept(
    n: int, views: torch.Tensor, calcium: torch.Tensor, background: torch.Tensor
) -> dict[str, NDArray[Any]]:
    bright = torch.maximum(calcium, views[LESION]).amax(dim=(1, 2)) > LESION_HU
    held = torch.nonzero(bright).flatten().tolist()
    kept = slice(max(held[0] - 1, 0), held[-1] + 2)
    views = views / torch.from_numpy(UNITS)[:, None, None, None]
    still = as_int16(calcium[kept])
    return {
        "views": as_int16(views[:, kept]),
        "still": still,
        "background": as_int16(background[kept]),
        "block": np.full(len(still), n, dtype=np.int16),
    }


def draw_corrections(
    corrections: Sequence[Correction],
    *,
    num_slices: int,
    batch_size: int,
    seed: Sequence[int],
    radius_pixels: int,
) -> Batch:
    """Draw one batch of windows; the same seed gives the same batch."""
    images: dict[str, list[torch.Tensor]] = {}
    lesions, spacing_mm = [], []
    for n in range(batch_size):
        rng = np.random.default_rng([*seed, n])
        one = corrections[int(rng.integers(len(corrections)))]
        middle = int(rng.choice(one.slices))
        same = np.flatnonzero(one.block == one.block[middle])
        around = (middle + np.arange(num_slices) - num_slices // 2).clip(same[0], same[-1])
        mirrors = rng.random(3) < 0.5
        views, still, background = (
            mirror(image, mirrors).astype(np.float32)
            for image in (one.views[:, around], one.still[around], one.background[around])
        )
        views *= UNITS[:, None, None, None]
        calcium = (still > 0) & (background + still >= CALCIUM_THRESHOLD_HU)
        sample = {
            "views": torch.from_numpy(views).flatten(0, 1),
            "still": in_units(background + still),
            "background": in_units(background),
            "calcium": torch.from_numpy(calcium),
            "moving": normalise(torch.from_numpy(views[VIEWS.index("seen")])),
        }
        for name, image in sample.items():
            images.setdefault(name, []).append(image)
        lesions.append(torch.from_numpy(lesion_neighbourhoods(calcium, radius_pixels)))
        spacing_mm.append(torch.from_numpy(one.spacing_mm))
    return Batch(
        **{name: torch.stack(values) for name, values in images.items()},
        lesions=torch.stack(lesions),
        spacing_mm=torch.stack(spacing_mm),
    )
