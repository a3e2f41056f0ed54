"""What it is worth that the blocks of a scan look for their motion together, and what it costs.

    python benchmarks/sharing.py PAIRS --run RUN [--max-scans 8] [--seed 0]

The simulator moves all calcium of a scan alike. A heart need not. So the moving blocks of held-out
patients are corrected each by itself, and all blocks of a scan together; and both once more where
sharing is wrong ("mixed"): block n of a scan under its motion n, counted round, as if that were
one scan. There each block should go its own way.

Blocks are judged one by one; those without calcium tell how frequently some is invented.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from prodm.evaluation.comparison import seed_of
from prodm.evaluation.methods import Method, find_method
from prodm.evaluation.metrics import Outcome, invented_lesions, judge, measure, summarise
from prodm.evaluation.patches import ScanBlocks, Selection, select
from prodm.evaluation.validation import as_metrics
from prodm.pairs.blocks import without_margin
from prodm.pairs.store import Pairs
from prodm.volume import Index

Blocks = NDArray[np.float32]
Correct = Callable[[Blocks, ScanBlocks, int], Blocks]  # (moving, scan, motion)


@dataclass
class Row:
    """What one way of correcting reached."""

    outcomes: list[Outcome] = field(default_factory=list)
    invented: list[bool] = field(default_factory=list)

    def add(self, corrected: Blocks, moving: Blocks, scan: ScanBlocks) -> None:
        """Judge the blocks of a scan."""
        for n, has_calcium in enumerate(scan.has_calcium):
            truth = measure(scan.still[n], scan.background[n], scan.spacing_mm)
            if has_calcium:
                self.outcomes.append(judge(corrected[n], truth))
            else:
                self.invented.append(invented_lesions(corrected[n], moving[n], truth) > 0)

    def __str__(self) -> str:
        m = as_metrics(summarise(self.outcomes))
        return (
            f"{len(self.outcomes)} | {m['agatston_mae']:.1f} | {m['grade_accuracy']:.1%} | "
            f"{m['dice_loss']:.3f} | {m['shifted_dice_loss']:.3f} | {m['pearson_r']:.3f} | "
            f"{sum(self.invented)} of {len(self.invented)}"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--run", required=True, help="as prodm evaluate takes it")
    parser.add_argument("--max-scans", type=int, default=None, help="with calcium; all motions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", choices=["validation", "test"], default="test")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    selection = _some(
        select(Pairs(arguments.pairs), arguments.split), arguments.max_scans, arguments.seed
    )
    method = find_method(arguments.run, num_jumps=4)
    columns = ("Agatston MAE", "grade accuracy", "Dice loss", "best translation", "r", "invented")
    print(f"| corrected | blocks | {' | '.join(columns)} |")
    print("|---" * 8 + "|")
    for name, row in compare(selection, method, arguments.seed).items():
        print(f"| {name} | {row} |", flush=True)


def compare(selection: Selection, method: Method, seed: int) -> dict[str, Row]:
    """Correct all that is selected in each way."""

    def together(moving: Blocks, scan: ScanBlocks, motion: int) -> Blocks:
        return method.correct(moving, scan.spacing_mm, seed_of(seed, scan.scan, motion, 0))

    def alone(moving: Blocks, scan: ScanBlocks, motion: int) -> Blocks:
        return np.concatenate([together(block[None], scan, motion) for block in moving])

    def nothing(moving: Blocks, scan: ScanBlocks, motion: int) -> Blocks:
        return moving

    ways: dict[str, tuple[bool, Correct]] = {
        "not at all": (False, nothing),
        "alone": (False, alone),
        "together": (False, together),
        "mixed, not at all": (True, nothing),
        "mixed, alone": (True, alone),
        "mixed, together": (True, together),
    }
    rows = {name: Row() for name in ways}
    for scan in selection.read():
        for is_mixed, seen, motion in _moving(selection, scan, method.margin):
            moving = without_margin(seen, method.margin)
            for name, (wants_mixed, correct) in ways.items():
                if wants_mixed == is_mixed:
                    corrected = without_margin(correct(seen, scan, motion), method.margin)
                    rows[name].add(corrected, moving, scan)
    return rows


def _some(selection: Selection, max_scans: int | None, seed: int) -> Selection:
    """Return scans with several motions, those with calcium, or some of them at random."""
    scans = [scan for scan, motions in selection.motions.items() if len(motions) > 1]
    order = np.random.default_rng(seed).permutation(len(scans))[:max_scans]
    kept = {scans[n]: selection.motions[scans[n]] for n in sorted(order)}
    return replace(selection, motions=kept)


def _moving(
    selection: Selection, scan: ScanBlocks, margin: Index
) -> Iterator[tuple[bool, Blocks, int]]:
    """Yield the blocks of a scan under each of its motions, and mixed where it has several."""
    by_motion = [selection.read_moving(scan, m, margin).astype(np.float32) for m in scan.motions]
    for motion, moving in zip(scan.motions, by_motion, strict=True):
        yield False, moving, motion.motion
    if len(by_motion) > 1:
        mixed = [by_motion[n % len(by_motion)][n] for n in range(len(scan.rows))]
        yield True, np.stack(mixed), -1


if __name__ == "__main__":
    main()
