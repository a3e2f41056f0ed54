"""All methods on the same held-out patches, patch by patch and scan by scan.

One scan is read at a time. For each of its motions every method corrects all blocks; each block
with calcium is judged on its own, each block without calcium is searched for calcium that was
not in the input, and the blocks together make the scan whose score a patient would get.

With several samples, methods that draw noise are asked again with other seeds. Tables are made
from the first sample; the others only serve the interval of the score.
"""

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prodm.errors import ProdmError
from prodm.evaluation.assembly import Layout, lay_out
from prodm.evaluation.methods import Blocks, Method
from prodm.evaluation.metrics import Outcome, Truth, agatston, invented_lesions, judge, measure
from prodm.evaluation.patches import ScanBlocks, Selection
from prodm.evaluation.similarity import ssim
from prodm.pairs.blocks import without_margin
from prodm.pairs.store import BlockRow, MotionRow
from prodm.runs import Progress, no_progress

SAMPLE_QUANTILE = 0.75  # of the calcium in a block: enough to be seen, not the extreme

Wanted = set[tuple[str, int, int]]  # patches: (scan, block, motion)


@dataclass(frozen=True)
class Case:
    """One image that all methods corrected: a block, or a scan (``block`` is None)."""

    scan: str
    patient: str
    block: int | None
    motion: int
    profile: str
    amplitude_px: float
    agatston: float
    largest_lesion_mm2: float
    peak_hu: float

    @property
    def family(self) -> str:
        """Family of the motion profile."""
        return self.profile.split("-")[0]


@dataclass(eq=False)
class MethodResults:
    """What one method did; lists run along the cases of the comparison."""

    method: Method
    patches: list[Outcome] = field(default_factory=list)
    scans: list[Outcome] = field(default_factory=list)
    patch_samples: list[list[float]] = field(default_factory=list)  # scores of each sample
    scan_samples: list[list[float]] = field(default_factory=list)
    invented: list[int] = field(default_factory=list)  # lesions per block without calcium
    num_corrected: int = 0
    num_calls: int | None = None  # of the network, where they are counted
    seconds: float = 0.0

    @property
    def seconds_per_patch(self) -> float:
        """Time of one correction of one patch."""
        return self.seconds / max(self.num_corrected, 1)


@dataclass(frozen=True, eq=False)
class Example:
    """One slice of one patch, for a figure: still, and as each method gives it back."""

    case: Case
    still: NDArray[np.int16]  # [Y, X]
    images: dict[str, NDArray[np.float32]]  # by method
    ssim: dict[str, float]


@dataclass(eq=False)
class Comparison:
    """Everything that tables and figures are made from."""

    results: list[MethodResults]
    num_samples: int
    seed: int
    patches: list[Case] = field(default_factory=list)
    scans: list[Case] = field(default_factory=list)
    num_free_blocks: int = 0
    examples: list[Example] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Still:
    """One scan at rest, measured once."""

    blocks: ScanBlocks
    truths: list[Truth]
    layout: Layout
    whole: Truth


def compare(
    selection: Selection,
    methods: Sequence[Method],
    *,
    num_samples: int = 1,
    seed: int = 0,
    progress: Progress = no_progress,
    wanted: Wanted | None = None,
) -> Comparison:
    """Let every method correct every selected patch, and judge them all.

    ``wanted`` are the patches to keep for a figure, one of each family without it.
    """
    if len({method.name for method in methods}) < len(methods):
        raise ProdmError("two methods have the same name; rename one of the run folders")
    comparison = Comparison([MethodResults(method) for method in methods], num_samples, seed)
    wanted = choose_examples(selection) if wanted is None else wanted
    calls = [method.calls() if method.calls else None for method in methods]
    done, total = 0, selection.num_patches * len(methods)
    for blocks in selection.read():
        still = _measure(blocks)
        for motion in blocks.motions:
            seen = {
                margin: selection.read_moving(blocks, motion, margin).astype(np.float32)
                for margin in {results.method.margin for results in comparison.results}
            }
            _add_cases(comparison, still, motion)
            corrected = {}
            for results in comparison.results:
                corrected[results.method.name] = _judge_method(
                    results,
                    still,
                    motion,
                    seen[results.method.margin],
                    num_samples=num_samples,
                    seed=seed,
                )
                done += len(blocks.rows)
                progress(done, total)
            for n, row in enumerate(blocks.rows):
                if (row.scan, row.block, motion.motion) in wanted:
                    comparison.examples.append(_example(still, n, motion, corrected))
    for results, before in zip(comparison.results, calls, strict=True):
        if results.method.calls and before is not None:
            results.num_calls = results.method.calls() - before
    comparison.examples.sort(key=lambda example: example.case.profile)
    return comparison


def _measure(blocks: ScanBlocks) -> _Still:
    layout = lay_out(blocks.corners, blocks.still)
    return _Still(
        blocks,
        [
            measure(still, background, blocks.spacing_mm)
            for still, background in zip(blocks.still, blocks.background, strict=True)
        ],
        layout,
        measure(
            layout.assemble(blocks.still),
            layout.assemble(blocks.background),
            blocks.spacing_mm,
        ),
    )


def _add_cases(comparison: Comparison, still: _Still, motion: MotionRow) -> None:
    blocks = still.blocks
    for n, has_calcium in enumerate(blocks.has_calcium):
        if has_calcium:
            comparison.patches.append(_case(still, motion, n))
        else:
            comparison.num_free_blocks += 1
    comparison.scans.append(_case(still, motion, None))


def _case(still: _Still, motion: MotionRow, block: int | None) -> Case:
    truth = still.whole if block is None else still.truths[block]
    return Case(
        scan=still.blocks.scan,
        patient=still.blocks.patient,
        block=None if block is None else still.blocks.rows[block].block,
        motion=motion.motion,
        profile=motion.profile,
        amplitude_px=motion.amplitude_px,
        agatston=truth.agatston,
        largest_lesion_mm2=truth.largest_lesion_mm2,
        peak_hu=truth.peak_hu,
    )


def _judge_method(
    results: MethodResults,
    still: _Still,
    motion: MotionRow,
    seen: Blocks,
    *,
    num_samples: int,
    seed: int,
) -> Blocks:
    """Correct and judge the blocks of one scan under one motion; return the first sample.

    Blocks are seen with the margin that the method wants, and judged without it.
    """
    moving = without_margin(seen, results.method.margin)
    blocks, has_calcium = still.blocks, still.blocks.has_calcium
    samples = []
    for sample in range(num_samples if results.method.is_random else 1):
        started = time.perf_counter()
        corrected = results.method.correct(
            seen, blocks.spacing_mm, seed_of(seed, blocks.scan, motion.motion, sample)
        )
        results.seconds += time.perf_counter() - started
        results.num_corrected += len(moving)
        checked = _checked(corrected, seen, results.method.name)
        samples.append(without_margin(checked, results.method.margin))
    first = samples[0]
    similarities = ssim(first, blocks.still)
    for n, truth in enumerate(still.truths):
        if has_calcium[n]:
            results.patches.append(judge(first[n], truth, ssim=float(similarities[n])))
        else:
            results.invented.append(invented_lesions(first[n], moving[n], truth))
    whole = judge(still.layout.assemble(first), still.whole, ssim=float(similarities.mean()))
    results.scans.append(whole)
    if len(samples) > 1:
        others = samples[1:]
        first_scores = results.patches[len(results.patches) - sum(has_calcium) :]
        with_calcium = [n for n, has in enumerate(has_calcium) if has]
        for n, outcome in zip(with_calcium, first_scores, strict=True):
            scores = [agatston(sample[n], still.truths[n]) for sample in others]
            results.patch_samples.append([outcome.agatston_predicted, *scores])
        scores = [agatston(still.layout.assemble(sample), still.whole) for sample in others]
        results.scan_samples.append([whole.agatston_predicted, *scores])
    return first


def _checked(corrected: Blocks, moving: Blocks, name: str) -> Blocks:
    if corrected.shape != moving.shape or not np.isfinite(corrected).all():
        raise ProdmError(
            f"{name} must return finite HU of shape {moving.shape}, got {corrected.shape}"
        )
    return corrected.astype(np.float32, copy=False)


def seed_of(seed: int, scan: str, motion: int, sample: int) -> int:
    """Return a seed of its own for each scan, motion and sample, the same on every machine."""
    return zlib.crc32(f"{seed}/{scan}/{motion}/{sample}".encode())


def choose_examples(selection: Selection) -> Wanted:
    """Choose one patch of each motion family: (scan, block, motion)."""
    by_family: dict[str, list[tuple[BlockRow, MotionRow]]] = {}
    for scan, motions in selection.motions.items():
        for motion in motions:
            for row in selection.rows[scan]:
                if row.calcium_voxels > 0:
                    family = motion.profile.split("-")[0]
                    by_family.setdefault(family, []).append((row, motion))
    chosen: set[tuple[str, int, int]] = set()
    for choices in by_family.values():
        choices.sort(key=lambda c: (c[0].calcium_voxels, c[0].scan, c[0].block, c[1].motion))
        shown = {(scan, block) for scan, block, _ in chosen}
        fresh = [c for c in choices if (c[0].scan, c[0].block) not in shown] or choices
        row, motion = fresh[int(SAMPLE_QUANTILE * (len(fresh) - 1))]
        chosen.add((row.scan, row.block, motion.motion))
    return chosen


def _example(still: _Still, n: int, motion: MotionRow, corrected: dict[str, Blocks]) -> Example:
    z = int(still.truths[n].mask.sum(axis=(1, 2)).argmax())
    image = still.blocks.still[n, z]
    images = {name: blocks[n, z] for name, blocks in corrected.items()}
    return Example(
        _case(still, motion, n),
        image,
        images,
        {name: float(ssim(other[None], image[None])) for name, other in images.items()},
    )
