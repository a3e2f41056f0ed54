"""Five patients, each still, moving and corrected, with the score of all three.

The example is fair: the patients were chosen by a rule that sees the still scan alone, before
any correction of them was seen. From seed 960001 on, which no shipped weights learnt from, the
first patient of each grade is taken, by the score of the still scan inside the heart, nine tenths
of which or more must be that of coronary calcium, since no other moves. In the order of the seeds,
their motions are given in turn: the four families, along x and y, small, medium and large.

Each step is that of a command: ``prodm phantom``, then ``prodm simulate`` with the patient's seed
and profile, then ``prodm correct`` with the phantom's heart as its region. Calcium of valves and
aorta inside the heart stays at rest and counts in all three scores.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prodm import agatston
from prodm.agatston import Score
from prodm.anatomy.phantom import Phantom, PhantomSettings, make_phantom
from prodm.calcium import grade
from prodm.correction import Corrected, Corrector, correct
from prodm.motion.profiles import PROFILES, draw
from prodm.motion.trajectory import Trajectory
from prodm.pairs.simulate import move, prepare
from prodm.runs import Progress, no_progress
from prodm.volume import Index, Volume

FIRST_SEED = 960_001
VIEW_MM = 44.0  # side of the square that is shown of each patient
PERCENT_PHANTOM, PERCENT_MOVED = 15, 30  # of a patient's work done by then


@dataclass(frozen=True)
class Case:
    """One patient: the seed of the phantom and of its motion, and the motion's profile."""

    seed: int
    grade: str  # of the still scan
    profile: str


CASES = (
    Case(960_002, "none", "oscillation-y-medium"),
    Case(960_015, "minimal", "translation-x-medium"),
    Case(960_004, "mild", "jitter-small"),
    Case(960_001, "moderate", "translation-x-small"),
    Case(960_003, "severe", "piecewise-x-large"),
)


@dataclass(frozen=True)
class DemoSettings:
    """What is shown, and how long it may take: steps and samples as in ``prodm correct``."""

    cases: tuple[Case, ...] = CASES
    method: str = "prodm"
    weights: Path | None = None  # None are those that ship
    steps: int = 4
    samples: int = 2
    seed: int = 0  # of the correction
    workers: int = 2
    phantom: PhantomSettings = field(default_factory=PhantomSettings)


DEMO = DemoSettings()


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of one patient. The views [3, Y, X] are moving, corrected and still, in HU."""

    case: Case
    patient: str
    spacing_mm: tuple[float, float, float]
    largest_shift_mm: float
    still: float  # Agatston scores inside the heart
    moving: float
    corrected: float
    not_coronary: float  # part of the still score that is no coronary calcium
    interval_90: tuple[float, float] | None  # None where nothing was drawn
    num_blocks: int
    model: str
    model_sha256: str | None
    warnings: tuple[str, ...]
    views: NDArray[np.float32]
    heart: NDArray[np.bool_]  # [Y, X] of the views: where calcium counts
    view_pixel_mm: float
    slice_index: int
    seconds: dict[str, float]

    @property
    def verdict(self) -> str:
        """Whether the correction made the error of the score smaller or larger, or neither."""
        before, after = abs(self.moving - self.still), abs(self.corrected - self.still)
        if np.isclose(before, after, rtol=1e-6, atol=0.05):
            return "same"
        return "smaller" if after < before else "larger"

    @property
    def held(self) -> bool | None:
        """Whether the interval holds the truth; None where there is no interval."""
        if self.interval_90 is None:
            return None
        low, high = self.interval_90
        return low <= self.still <= high

    def to_json(self) -> dict[str, Any]:
        """Return the patient's entry in ``demo.json``."""
        scores = {
            name: {"agatston": score, "grade": grade(score)}
            for name, score in (
                ("still", self.still),
                ("moving", self.moving),
                ("corrected", self.corrected),
            )
        }
        return {
            "patient": self.patient,
            "seed": self.case.seed,
            "profile": self.case.profile,
            "largest_shift_mm": round(self.largest_shift_mm, 2),
            "spacing_mm": list(self.spacing_mm),
            **scores,
            "agatston_not_coronary": self.not_coronary,
            "agatston_interval_90": None if self.interval_90 is None else list(self.interval_90),
            "interval_holds_truth": self.held,
            "error_after_correction": self.verdict,
            "blocks": self.num_blocks,
            "model": {"name": self.model, "sha256": self.model_sha256},
            "warnings": list(self.warnings),
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
        }


def run_case(
    case: Case, settings: DemoSettings, corrector: Corrector, progress: Progress = no_progress
) -> Outcome:
    """Make one patient, move, correct and score; progress is in percent."""
    started = time.perf_counter()
    phantom = make_phantom(case.seed, settings.phantom)
    progress(PERCENT_PHANTOM, 100)
    made = time.perf_counter()
    moving, trajectory = move_calcium(phantom, case)
    progress(PERCENT_MOVED, 100)
    moved = time.perf_counter()
    result = correct(
        moving,
        phantom.heart,
        corrector,
        steps=settings.steps,
        samples=settings.samples,
        seed=settings.seed,
        progress=lambda done, total: progress(_percent(done, total), 100),
    )
    seconds = {"phantom": made - started, "motion": moved - made, "correction": result.seconds}
    outcome = _outcome(case, phantom, moving, trajectory, result, seconds)
    progress(100, 100)
    return outcome


def move_calcium(phantom: Phantom, case: Case) -> tuple[Volume, Trajectory]:
    """Return the scan with its calcium in motion, as ``prodm simulate`` makes it."""
    rng = np.random.default_rng([case.seed, 0])
    rng.choice(PROFILES)  # the draw that a named profile replaces
    trajectory = draw(case.profile, rng, pixel_spacing_mm=phantom.still.spacing_mm[1])
    if not phantom.calcium.any():
        return phantom.still, trajectory
    grain = np.random.default_rng([case.seed, 1])
    moved = move(prepare(phantom.still, phantom.calcium, grain), trajectory).moving
    limits = np.iinfo(np.int16)
    hu = np.clip(np.rint(moved.hu), limits.min, limits.max).astype(np.int16)
    return phantom.still.with_hu(hu), trajectory


def _percent(done: int, total: int) -> int:
    return PERCENT_MOVED + round((99 - PERCENT_MOVED) * done / max(total, 1))


def _outcome(
    case: Case,
    phantom: Phantom,
    moving: Volume,
    trajectory: Trajectory,
    result: Corrected,
    seconds: dict[str, float],
) -> Outcome:
    still = agatston.score(phantom.still, phantom.heart)
    coronary = agatston.score(phantom.still, phantom.calcium)
    center = _center(phantom, coronary)
    z, rows, columns = _view(center, phantom.still)
    images = (moving, result.volume, phantom.still)
    shifts_mm = np.linalg.norm(trajectory.displacement(trajectory.times), axis=1)
    return Outcome(
        case=case,
        patient=phantom.patient,
        spacing_mm=phantom.still.spacing_mm,
        largest_shift_mm=float(shifts_mm.max()) if phantom.calcium.any() else 0.0,
        still=still.agatston,
        moving=result.before.agatston,
        corrected=result.after.agatston,
        not_coronary=max(0.0, still.agatston - coronary.agatston),
        interval_90=None if result.spread is None else result.spread.interval_90,
        num_blocks=len(result.rois),
        model=result.model_name,
        model_sha256=result.model_sha256,
        warnings=result.warnings,
        views=np.stack([image.hu[z, rows, columns].astype(np.float32) for image in images]),
        heart=phantom.heart[z, rows, columns],
        view_pixel_mm=phantom.still.spacing_mm[1],
        slice_index=z,
        seconds=seconds,
    )


def _center(phantom: Phantom, coronary: Score) -> Index:
    """Return the voxel to look at: the largest coronary lesion, or the left edge of the heart."""
    if coronary.lesions:
        largest = max(coronary.lesions, key=lambda lesion: lesion.agatston)
        _, y, x = phantom.still.grid.index_zyx(largest.position_xyz_mm)
        return largest.slice_index, round(y), round(x)
    z = int(phantom.heart.sum(axis=(1, 2)).argmax())
    y = round(float(np.nonzero(phantom.heart[z])[0].mean()))
    return z, y, int(np.flatnonzero(phantom.heart[z, y])[-1])


def _view(center: Index, volume: Volume) -> tuple[int, slice, slice]:
    """Return the slice, and rows and columns of a square around a voxel, inside the scan."""
    ends = []
    for axis in (1, 2):
        size = min(volume.shape[axis], round(VIEW_MM / volume.spacing_mm[axis]))
        start = int(np.clip(center[axis] - size // 2, 0, volume.shape[axis] - size))
        ends.append(slice(start, start + size))
    return center[0], ends[0], ends[1]
