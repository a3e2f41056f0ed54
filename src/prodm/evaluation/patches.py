"""Patches of patients that no model was trained on, moved by back-projection."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prodm.errors import ProdmError
from prodm.evaluation.metrics import Outcome, judge, measure
from prodm.pairs.blocks import MARGIN, NO_MARGIN, without_margin
from prodm.pairs.store import BlockRow, MotionRow, Pairs, Split
from prodm.volume import Index, Vector

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
    motions = _motions_by_scan(pairs)
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
) -> list[Outcome]:
    """Correct patches a few at a time and judge each."""
    outcomes = []
    for start in range(0, len(patches), at_once):
        part = patches[start : start + at_once]
        corrected = correct(np.stack([patch.moving for patch in part]).astype(np.float32))
        outcomes += [
            judge(hu, measure(patch.still, patch.background, patch.row.spacing_mm))
            for hu, patch in zip(corrected, part, strict=True)
        ]
    return outcomes


@dataclass(frozen=True, eq=False)
class ScanBlocks:
    """All blocks of one scan without their margins, and the motions chosen for it."""

    rows: tuple[BlockRow, ...]
    motions: tuple[MotionRow, ...]
    still: NDArray[np.int16]  # [block, Z, Y, X]
    background: NDArray[np.int16]
    has_calcium: tuple[bool, ...]  # one per block

    @property
    def scan(self) -> str:
        """Name of the scan."""
        return self.rows[0].scan

    @property
    def patient(self) -> str:
        """Name of the patient."""
        return self.rows[0].patient

    @property
    def spacing_mm(self) -> Vector:
        """Spacing (z, y, x)."""
        return self.rows[0].spacing_mm

    @property
    def corners(self) -> list[Index]:
        """Indices in the scan of each block's first voxel, the margin left out."""
        dz, dy, dx = MARGIN
        return [(row.corner_z + dz, row.corner_y + dy, row.corner_x + dx) for row in self.rows]


@dataclass(frozen=True)
class Selection:
    """Which scans and motions of a store are evaluated; blocks of a scan stay together."""

    pairs: Pairs
    motions: dict[str, tuple[MotionRow, ...]]  # by scan
    rows: dict[str, tuple[BlockRow, ...]]

    @property
    def num_patches(self) -> int:
        """Number of pairs of a block and a motion."""
        return sum(len(self.rows[scan]) * len(chosen) for scan, chosen in self.motions.items())

    def read(self) -> Iterator[ScanBlocks]:
        """Read one scan after the other."""
        for scan, motions in self.motions.items():
            rows = self.rows[scan]
            calcium = [_inner(self.pairs.read("calcium", row)) for row in rows]
            yield ScanBlocks(
                rows,
                motions,
                np.stack([_inner(self.pairs.read("still", row)) for row in rows]),
                np.stack([_inner(self.pairs.read("background", row)) for row in rows]),
                tuple(bool(labels.any()) for labels in calcium),
            )

    def read_moving(
        self, blocks: ScanBlocks, motion: MotionRow, margin: Index = NO_MARGIN
    ) -> NDArray[np.int16]:
        """Return all blocks [N, Z, Y, X] of a scan as one motion shows them, with a margin."""
        return np.stack(
            [_inner(self.pairs.read_moving(row, motion.motion), margin) for row in blocks.rows]
        )


def select(
    pairs: Pairs, split: Split | None = "test", *, max_patches: int | None = None, seed: int = 0
) -> Selection:
    """Choose what to evaluate: everything, or scans with motions at random up to a number.

    Without a ``split``, all patients are chosen from, for a store that was made for one purpose.
    All blocks of a scan are taken for each of its motions, because a patient's score needs all
    of them; so the number of patches may fall short of ``max_patches`` by a scan, or, with the
    very first, exceed it. A scan without calcium looks the same under every motion and is taken
    once.
    """
    motions = _motions_by_scan(pairs)
    rows: dict[str, list[BlockRow]] = {}
    for row in pairs.blocks:
        if split in (None, row.split):
            rows.setdefault(row.scan, []).append(row)
    choices: list[tuple[str, MotionRow]] = []
    for scan, blocks in rows.items():
        moves = any(row.calcium_voxels for row in blocks)
        choices += [(scan, motion) for motion in motions.get(scan, [])[: None if moves else 1]]
    if not choices:
        raise ProdmError(
            f"{pairs.folder} has no moving block in its {split or 'only'} part; build it from more "
            "patients, with --moving all or held-out"
        )
    if max_patches is not None:
        order = np.random.default_rng(seed).permutation(len(choices))
        kept: list[tuple[str, MotionRow]] = []
        total = 0
        for index in order:
            total += len(rows[choices[index][0]])
            if kept and total > max_patches:
                break
            kept.append(choices[index])
        choices = sorted(kept, key=lambda choice: (choice[0], choice[1].motion))
    chosen: dict[str, list[MotionRow]] = {}
    for scan, motion in choices:
        chosen.setdefault(scan, []).append(motion)
    return Selection(
        pairs,
        {scan: tuple(part) for scan, part in chosen.items()},
        {scan: tuple(rows[scan]) for scan in chosen},
    )


def _motions_by_scan(pairs: Pairs) -> dict[str, list[MotionRow]]:
    motions: dict[str, list[MotionRow]] = {}
    for motion in pairs.motions:
        motions.setdefault(motion.scan, []).append(motion)
    return motions


def _inner(block: NDArray[Any], kept: Index = NO_MARGIN) -> NDArray[Any]:
    """Cut off the margin of a stored block, or all of it but what is kept."""
    z, y, x = (m - k for m, k in zip(MARGIN, kept, strict=True))
    return without_margin(block, (z, y, x))
