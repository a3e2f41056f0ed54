"""Correct the calcium of a whole scan in memory.

    candidates  ->  few windows over them  ->  blocks  ->  corrector  ->  smooth paste  ->  score

The change of a window fades to nothing at its faces, and within ``BEYOND_MM`` outside the region,
and where windows overlap their changes are averaged with the same weights. Four things never
change: voxels outside the windows; voxels farther from the region; bone and calcium outside
it, unless it touches a candidate; and the mean HU of each group of windows that touch, because
motion moves calcium and makes none. A corrector that draws is asked
for several samples; each is scored, and the image that is returned is the one whose score is
the (lower) median, so that image and score belong together.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from prodm import agatston
from prodm.agatston import Region, Score
from prodm.calcium import AIR_HU, CALCIUM_THRESHOLD_HU
from prodm.correction.candidates import Candidates, Mask, bounding_box, find_candidates
from prodm.correction.correctors import Corrector
from prodm.correction.explanation import Explanation, explain
from prodm.correction.geometry import Blocks, Sampling, choose_sampling
from prodm.correction.trust import (
    Spread,
    left_alone_warnings,
    spread_of,
    trust_warnings,
    unexplained_warnings,
)
from prodm.errors import ProdmError
from prodm.pairs.blocks import cover, inside, without_margin
from prodm.runs import Progress, no_progress
from prodm.volume import Hounsfield, Index, Vector, Volume, Window

Scorer = Callable[[Volume, Region], Score]

FADE = (8, 16, 16)  # the change fades in over a window's length divided by this
REACH_MM = 3.0
BEYOND_MM = 6.0  # outside the region, over which a change fades out
NEAR_CANDIDATE_MM = 3.0  # dense voxels outside the region this near belong to the candidate
NO_CANDIDATES = "nothing in the region looks like calcium, so the scan is unchanged"


@dataclass(frozen=True)
class Roi:
    """One window over candidates, and what happened in it."""

    window: Window  # cut at the scan's ends
    center_xyz_mm: Vector
    candidate_voxels: int
    agatston_before: float
    agatston_after: float
    largest_change_hu: float
    explained: Explanation | None  # by which motion; None where no calcium changed

    def to_json(self) -> dict[str, Any]:
        """Return the entry of ``result.json``."""
        slices, rows, columns = ([axis.start, axis.stop] for axis in self.window)
        return {
            "slices": slices,
            "rows": rows,
            "columns": columns,
            "center_xyz_mm": list(self.center_xyz_mm),
            "candidate_voxels": self.candidate_voxels,
            "agatston_before": self.agatston_before,
            "agatston_after": self.agatston_after,
            "largest_change_hu": self.largest_change_hu,
            "explained": None if self.explained is None else self.explained.to_json(),
        }


@dataclass(frozen=True, eq=False)
class Corrected:
    """A corrected scan, its scores, and why to trust or distrust it."""

    volume: Volume
    before: Score
    after: Score
    spread: Spread | None  # None where there is only one sample
    rois: tuple[Roi, ...]
    candidates: Candidates
    sampling: Sampling
    warnings: tuple[str, ...]
    model_name: str
    model_sha256: str | None
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    corrector_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``result.json``."""
        spread = self.spread
        return {
            "before": self.before.to_json(),
            "after": self.after.to_json()
            | {
                "agatston_interval_90": None if spread is None else list(spread.interval_90),
                "grade_probabilities": None if spread is None else spread.grade_probabilities,
                "agatston_samples": None if spread is None else list(spread.scores),
            },
            "rois": [roi.to_json() for roi in self.rois],
            "settings": dict(self.settings),
            "model": {"name": self.model_name, "sha256": self.model_sha256},
            "seconds": round(self.seconds, 3),
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, eq=False)
class Plan:
    """Where blocks are cut and how their changes are put together."""

    sampling: Sampling
    windows: tuple[Window, ...]
    box: Window  # around all windows, inside the scan
    weight: NDArray[np.float32]  # [Z, Y, X] of the box: how much of a change counts, 0 to 1
    total: NDArray[np.float32]  # sum of the windows' weights, at least 1
    groups: NDArray[np.int32]  # of windows that touch, from 1


@dataclass(frozen=True)
class Drawing:
    """What a corrector is asked for."""

    steps: int | None
    samples: int
    seed: int


def correct(
    volume: Volume,
    region: Region,
    corrector: Corrector,
    *,
    steps: int | None = 10,
    samples: int = 8,
    seed: int = 0,
    scorer: Scorer = agatston.score,
    progress: Progress = no_progress,
) -> Corrected:
    """Correct a scan inside a region and score it before and after.

    Args:
        volume: HU; axes towards left, back and head. It is not changed.
        region: heart or coronary arteries [Z, Y, X], boolean or labels of ``Vessel``.
        corrector: see ``load_corrector``.
        steps: jumps of the bridge; None takes the network's own.
        samples: how many answers to draw; a corrector that does not draw gives one.
        seed: of all that is drawn.
        scorer: how a volume is scored inside the region.
        progress: called with (blocks done, blocks in all).
    """
    started = time.perf_counter()
    if samples < 1:
        raise ProdmError(f"at least one sample is needed, got {samples}")
    if region.shape != volume.shape:
        raise ProdmError(f"the scan has {volume.shape} voxels but the region {region.shape}")
    num_samples = samples if corrector.draws else 1
    inner = region > 0
    before = scorer(volume, region)
    candidates = find_candidates(volume, inner)
    sampling = choose_sampling(volume.spacing_mm, corrector.known)
    result = Corrected(
        volume=volume,
        before=before,
        after=before,
        spread=None,
        rois=(),
        candidates=candidates,
        sampling=sampling,
        warnings=(),
        model_name=corrector.name,
        model_sha256=corrector.sha256,
        settings={"steps": steps, "samples": num_samples, "seed": seed},
    )
    if not candidates.mask.any():
        left = left_alone_warnings(before, candidates.mask, volume.grid)
        warnings = (NO_CANDIDATES, *left)
        return replace(result, warnings=warnings, seconds=time.perf_counter() - started)
    plan = make_plan(candidates.mask, sampling, volume.spacing_mm)
    allowed = _allowed(volume, inner, candidates.mask, plan.box)
    drawing = Drawing(steps, num_samples, seed)
    changes, corrector_seconds = _changes(volume, plan, corrector, drawing, progress)
    scores = [scorer(paste(volume, plan, change, allowed), region) for change in changes]
    chosen = _median(scores)
    image, after = paste(volume, plan, changes[chosen], allowed), scores[chosen]
    spread = spread_of([score.agatston for score in scores], corrector.calibration)
    rois = _rois(volume, image, plan, candidates.mask, before, after)
    return replace(
        result,
        volume=image,
        after=after,
        spread=spread,
        rois=rois,
        warnings=(
            *trust_warnings(before, after, spread, candidates.mask, volume.grid),
            *unexplained_warnings([roi.explained for roi in rois]),
        ),
        seconds=time.perf_counter() - started,
        corrector_seconds=corrector_seconds,
    )


def make_plan(candidates: Mask, sampling: Sampling, spacing_mm: Vector) -> Plan:
    """Lay few windows over the candidates and work out how much each voxel may change.

    What surrounds a candidate by the reach of motion is covered with it, because calcium may
    have come from there.
    """
    shape: Index = (candidates.shape[0], candidates.shape[1], candidates.shape[2])
    reached = np.zeros_like(candidates)
    near = bounding_box(candidates, REACH_MM, spacing_mm)
    distance_mm = ndimage.distance_transform_edt(~candidates[near], sampling=spacing_mm)
    reached[near] = distance_mm <= REACH_MM
    windows = tuple(cover(reached, sampling.window_shape))
    parts = [inside(window, shape)[1] for window in windows]
    z, y, x = (
        slice(min(p[axis].start for p in parts), max(p[axis].stop for p in parts))
        for axis in range(3)
    )
    box = (z, y, x)
    total = np.zeros([axis.stop - axis.start for axis in box], dtype=np.float32)
    fade = _fade(sampling.window_shape)
    for window in windows:
        own, place = _place(window, box, shape)
        total[place] += fade[own]
    groups, _ = ndimage.label(total > 0)
    weight = np.minimum(total, np.float32(1))
    return Plan(sampling, windows, box, weight, np.maximum(total, np.float32(1)), groups)


def paste(
    volume: Volume, plan: Plan, change: Sequence[Blocks], allowed: NDArray[np.float32]
) -> Volume:
    """Add the windows' changes [Z, Y, X], as far as allowed, keeping each group's mean HU."""
    total = np.zeros(plan.weight.shape, dtype=np.float32)
    fade = _fade(plan.sampling.window_shape)
    for window, window_change in zip(plan.windows, change, strict=True):
        own, place = _place(window, plan.box, volume.shape)
        total[place] += fade[own] * window_change[own]
    total *= allowed / plan.total
    weight = plan.weight * allowed
    numbers = np.arange(plan.groups.max() + 1)
    sums = ndimage.sum_labels(total.astype(np.float64), plan.groups, numbers)
    weights = ndimage.sum_labels(weight.astype(np.float64), plan.groups, numbers)
    drift = np.divide(sums, weights, out=np.zeros(len(numbers)), where=weights > 0)
    total -= drift.astype(np.float32)[plan.groups] * weight
    return volume.with_hu(_added(volume.hu, plan.box, total))


def _added(hu: Hounsfield, box: Window, change: NDArray[np.float32]) -> Hounsfield:
    """Return HU with a change added inside a box; nothing that was above air falls below it."""
    old = hu[box].astype(np.float32)
    new = np.maximum(old + change, np.minimum(old, np.float32(AIR_HU)))
    added = hu.copy()
    if hu.dtype == np.int16:
        limits = np.iinfo(np.int16)
        added[box] = np.rint(np.clip(new, limits.min, limits.max)).astype(np.int16)
    else:
        added[box] = np.where(change == 0, old, new)
    return added


def _changes(
    volume: Volume, plan: Plan, corrector: Corrector, drawing: Drawing, progress: Progress
) -> tuple[list[list[Blocks]], float]:
    """Return, for each sample, the change of each window [Z, Y, X], and the time it took.

    All blocks of the scan go to the corrector together, once for each sample.
    """
    spacing_mm = plan.sampling.spacing_mm(volume.spacing_mm)
    seen = np.concatenate(
        [plan.sampling.take(volume.hu, window, corrector.margin) for window in plan.windows]
    )
    blocks = without_margin(seen, corrector.margin)
    corrected = np.empty((drawing.samples, *blocks.shape), dtype=np.float32)
    total = drawing.samples * len(blocks)
    started = time.perf_counter()
    for sample in range(drawing.samples):
        before = sample * len(blocks)

        def report(done: int, _: int, before: int = before) -> None:
            progress(before + done, total)

        report(0, total)
        seed = int(np.random.SeedSequence([drawing.seed, sample]).generate_state(1)[0])
        outputs = corrector(seen, spacing_mm, steps=drawing.steps, seed=seed, progress=report)
        corrected[sample] = without_margin(outputs, corrector.margin) - blocks
    progress(total, total)
    seconds = time.perf_counter() - started
    if not np.isfinite(corrected).all():
        raise ProdmError("the corrector returned values that are not numbers; check its weights")
    per_window = plan.sampling.blocks_per_window
    parts = corrected.reshape(drawing.samples, len(plan.windows), per_window, *blocks.shape[1:])
    return [[plan.sampling.put(window) for window in sample] for sample in parts], seconds


def _median(scores: Sequence[Score]) -> int:
    """Return the number of the sample with the lower median score."""
    order = sorted(range(len(scores)), key=lambda n: (scores[n].agatston, n))
    return order[(len(order) - 1) // 2]


def _allowed(volume: Volume, region: Mask, candidates: Mask, box: Window) -> NDArray[np.float32]:
    """Return how much of a change counts in the box: none in bone or far outside the region."""
    to_candidate_mm, to_region_mm = (
        ndimage.distance_transform_edt(~mask[box], sampling=volume.spacing_mm)
        for mask in (candidates, region)
    )
    dense = (volume.hu[box] >= CALCIUM_THRESHOLD_HU) & ~region[box]
    kept = dense & (to_candidate_mm > NEAR_CANDIDATE_MM)
    near = np.clip(1 - to_region_mm / BEYOND_MM, 0, 1)
    return np.where(kept, 0, near).astype(np.float32)


def _fade(shape: Index) -> NDArray[np.float32]:
    """Weights of a window [Z, Y, X]: 1 inside, falling to nothing at its faces."""
    profiles = []
    for length, part in zip(shape, FADE, strict=True):
        depth = (np.minimum(np.arange(length), np.arange(length)[::-1]) + 1) / (length / part + 1)
        profiles.append(np.sin(0.5 * np.pi * np.minimum(depth, 1)) ** 2)
    z, y, x = profiles
    weights: NDArray[np.float32] = (z[:, None, None] * y[:, None] * x).astype(np.float32)
    return weights


def _place(window: Window, box: Window, shape: Index) -> tuple[Window, Window]:
    """Return the part of a window inside the scan, in its own indices and in the box's."""
    own, outer = inside(window, shape)
    z, y, x = (
        slice(part.start - whole.start, part.stop - whole.start)
        for part, whole in zip(outer, box, strict=True)
    )
    return own, (z, y, x)


def _rois(
    volume: Volume, image: Volume, plan: Plan, candidates: Mask, before: Score, after: Score
) -> tuple[Roi, ...]:
    """Describe each window; a lesion, or a candidate, belongs to the first that holds it."""
    left = candidates.copy()
    lesions = [(score, [volume.grid.index_zyx(x.position_xyz_mm) for x in score.lesions])
               for score in (before, after)]  # fmt: skip
    taken: list[set[int]] = [set(), set()]
    rois = []
    for window in plan.windows:
        _, place = inside(window, volume.shape)
        scores = []
        for (score, places), used in zip(lesions, taken, strict=True):
            held = {n for n, index in enumerate(places) if _holds(place, index)} - used
            used |= held
            scores.append(sum(score.lesions[n].agatston for n in held))
        change = np.abs(image.hu[place].astype(np.float32) - volume.hu[place])
        voxels = np.argwhere(left[place])
        centre = voxels.mean(axis=0) if len(voxels) else np.array(change.shape) / 2
        first = np.array([axis.start for axis in place])
        rois.append(
            Roi(
                window=place,
                center_xyz_mm=volume.grid.position_xyz_mm(tuple(centre + first)),
                candidate_voxels=len(voxels),
                agatston_before=float(scores[0]),
                agatston_after=float(scores[1]),
                largest_change_hu=float(change.max()),
                explained=explain(volume.hu[place], image.hu[place], volume.spacing_mm[2]),
            )
        )
        left[place] = False
    return tuple(rois)


def _holds(window: Window, index: Vector) -> bool:
    return all(s.start - 0.5 <= i < s.stop - 0.5 for s, i in zip(window, index, strict=True))
