"""Patches of patients that no model was trained on, moved by back-projection."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prodm.errors import ProdmError
from prodm.evaluation.metrics import PatchResult, judge
from prodm.pairs.blocks import BLOCK_SHAPE, MARGIN
from prodm.pairs.store import BlockRow, MotionRow, Pairs, Split

Correct = Callable[[NDArray[np.float32]], NDArray[np.float32]]  # HU [N, Z, Y, X] -> the same


@dataclass(frozen=True, eq=False)
class Patch:
    """One block without its margin, still and as one motion shows it; HU [Z, Y, X]."""

    row: BlockRow
    motion: MotionRow
    still: NDArray[np.int16]
    background: NDArray[np.int16]
    moving: NDArray[np.int16]


def load_patches(
    pairs: Pairs, split: Split, *, with_calcium: bool, count: int | None = None, seed: int = 0
) -> list[Patch]:
    """Read the patches of one part, or ``count`` of them drawn at random."""
    motions: dict[str, list[MotionRow]] = {}
    for motion in pairs.motions:
        motions.setdefault(motion.scan, []).append(motion)
    choices = [
        (row, motion)
        for row in pairs.blocks
        if row.split == split
        for motion in motions.get(row.scan, [])
    ]
    chosen = np.random.default_rng(seed).permutation(len(choices))
    patches: list[Patch] = []
    for index in chosen:
        if count is not None and len(patches) == count:
            break
        row, motion = choices[index]
        if (row.calcium_voxels > 0) != with_calcium:
            continue
        calcium = _inner(pairs.read("calcium", row))
        if bool(calcium.any()) != with_calcium:
            continue
        patches.append(
            Patch(
                row,
                motion,
                _inner(pairs.read("still", row)),
                _inner(pairs.read("background", row)),
                _inner(pairs.read_moving(row, motion.motion)),
            )
        )
    if not patches:
        kind = "with" if with_calcium else "without"
        raise ProdmError(f"{pairs.folder} has no moving block {kind} calcium in its {split} part")
    return patches


def correct_and_judge(
    patches: Sequence[Patch], correct: Correct, *, at_once: int = 16
) -> list[PatchResult]:
    """Correct patches a few at a time and judge each."""
    results = []
    for start in range(0, len(patches), at_once):
        part = patches[start : start + at_once]
        corrected = correct(np.stack([patch.moving for patch in part]).astype(np.float32))
        results += [
            judge(hu, patch.still, patch.background, patch.row.spacing_mm)
            for hu, patch in zip(corrected, part, strict=True)
        ]
    return results


def _inner(block: NDArray[Any]) -> NDArray[Any]:
    """Cut off the margin of a stored block."""
    window = tuple(slice(m, m + n) for m, n in zip(MARGIN, BLOCK_SHAPE, strict=True))
    return block[window]
