"""The race of ``prodm bench simulate``: the fast simulation beside the algorithm as printed.

One phantom, the slices that its moving calcium reaches, one trajectory, one run. Taking the calcium
out of the scan is the same for all and not timed; compiled code is compiled before the start.
The printed algorithm is raced as fast as scikit-image does it, linear on whole pixels; pictures are
compared with a sharp one, over all calcium of the same phantom, at rest and in each family.
"""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prodm.anatomy.phantom import make_phantom
from prodm.benchmarks.anglewise import move_anglewise
from prodm.benchmarks.literal_algorithm import move_literally
from prodm.benchmarks.pictures import compare_pictures
from prodm.calcium import AIR_HU
from prodm.errors import ProdmError
from prodm.motion.profiles import draw
from prodm.motion.trajectory import Fixed, Trajectory
from prodm.pairs.simulate import StillScan, displacement_px, move, prepare
from prodm.runs import Progress, no_progress

Floats = NDArray[np.float32]

RACE_PROFILE = "piecewise-x-medium"
FAMILIES = ("translation-x-medium", "oscillation-y-medium", "piecewise-x-large", "jitter-medium")
NUM_SLICES = 8
BLOCK_SHAPE = (16, 64, 64)
MOST_SEEDS = 20


@dataclass(frozen=True)
class Contestant:
    """One way to make the moving scan, and how long it took."""

    name: str
    wall_s: float
    core_s: float  # processor time over all cores
    times_faster: float  # than the literal algorithm, by the clock


def race(
    *,
    num_angles: int = 720,
    size_px: int | None = None,
    picture_angles: int = 90,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Time all contestants and compare their pictures; ``size_px`` crops for a quick look."""
    total = 4 + len(FAMILIES)
    cores = os.cpu_count() or 1
    still = _still_phantom(size_px)
    trajectory = _trajectory(RACE_PROFILE, still, num_angles)
    progress(1, total)
    slices = _race_whole_slices(still, trajectory)
    progress(2, total)
    blocks = _race_blocks(still, trajectory)
    progress(3, total)
    trajectories = [Trajectory("at rest", Fixed(), num_angles=picture_angles)]
    trajectories += [_trajectory(profile, still, picture_angles) for profile in FAMILIES]
    pictures = []
    for picture in compare_pictures(still, trajectories, workers=cores):
        pictures.append(picture)
        progress(3 + len(pictures), total)
    return {
        "num_angles": num_angles,
        "cores": cores,
        "picture_angles": picture_angles,
        "shape": list(still.volume.shape),
        "calcium_slices": int((still.calcium > 0).any(axis=(1, 2)).sum()),
        "whole_slices": [asdict(row) for row in slices],
        "block": [asdict(row) for row in blocks],
        "block_shape": list(BLOCK_SHAPE),
        "pictures": [asdict(picture) for picture in pictures],
    }


def _still_phantom(size_px: int | None) -> StillScan:
    """Return the first gated phantom with calcium in enough slices, cut along z to just those."""
    for seed in range(MOST_SEEDS):
        phantom = make_phantom(seed)
        held = np.flatnonzero((phantom.calcium > 0).any(axis=(1, 2)))
        if len(held) < NUM_SLICES or not phantom.acquisition.gated:
            continue
        tightest = int(np.argmin(held[NUM_SLICES - 1 :] - held[: 1 - NUM_SLICES]))
        first, last = int(held[tightest]), int(held[tightest + NUM_SLICES - 1])
        calcium = phantom.calcium.copy()
        calcium[:first] = 0
        calcium[last + 1 :] = 0
        z = slice(max(0, first - 3), min(len(calcium), last + 4))
        y, x = (_around(calcium, axis, size_px) for axis in (1, 2))
        window = (z, y, x)
        return prepare(phantom.still.crop(window), calcium[window], np.random.default_rng(0))
    raise ProdmError(f"none of {MOST_SEEDS} gated phantoms has calcium in {NUM_SLICES} slices")


def _around(calcium: NDArray[np.uint8], axis: int, size_px: int | None) -> slice:
    """Range of an axis around the first lesion, or all of it."""
    length = calcium.shape[axis]
    if size_px is None:
        return slice(0, length)
    others = tuple(n for n in range(3) if n != axis)
    middle = int(np.argmax((calcium > 0).sum(axis=others)))
    start = int(np.clip(middle - size_px // 2, 0, length - size_px))
    return slice(start, start + size_px)


def _trajectory(profile: str, still: StillScan, num_angles: int) -> Trajectory:
    rng = np.random.default_rng(1)
    spacing_mm = still.volume.spacing_mm[1]
    return draw(profile, rng, pixel_spacing_mm=spacing_mm, num_angles=num_angles)


def _race_whole_slices(still: StillScan, trajectory: Trajectory) -> list[Contestant]:
    displacement = displacement_px(trajectory, still.volume.spacing_mm)
    background = still.background.hu.astype(np.float32)
    excess = _whole_excess(still)
    low = int(np.floor(displacement[:, 2].min())) + still.window[0].start
    high = int(np.ceil(displacement[:, 2].max())) + still.window[0].stop
    reached = slice(max(0, low), min(len(excess), high))
    arguments = (background[reached], excess[reached], trajectory.angles_rad, displacement)

    few = slice(0, 8)
    move_anglewise(background[:1], excess[:1], trajectory.angles_rad[few], displacement[few])
    move(still, trajectory, window=(reached, slice(0, 32), slice(0, 32)))
    move(still, trajectory, engine="phase", window=(reached, slice(0, 32), slice(0, 32)))

    window = (reached, slice(None), slice(None))
    timed = {
        "literal, scikit-image": _time(lambda: move_literally(*arguments)),
        "angle by angle, numba": _time(lambda: move_anglewise(*arguments)),
        "back-projection, prodm": _time(lambda: move(still, trajectory, window=window), 5),
        "phase, prodm": _time(lambda: move(still, trajectory, engine="phase", window=window), 5),
    }
    return _ranking(timed)


def _race_blocks(still: StillScan, trajectory: Trajectory) -> list[Contestant]:
    """One lesion in a block of the size that networks are trained on."""
    from prodm.physics import phase

    excess = _whole_excess(still)
    peak = np.unravel_index(int(np.argmax(excess)), excess.shape)
    window = [slice(0, len(excess))]
    for axis in (1, 2):
        length = excess.shape[axis]
        start = int(np.clip(peak[axis] - 32, 0, length - BLOCK_SHAPE[axis]))
        window.append(slice(start, start + BLOCK_SHAPE[axis]))
    block = np.zeros(BLOCK_SHAPE, np.float32)
    cut = excess[tuple(window)][: BLOCK_SHAPE[0]]
    block[: len(cut)] = cut
    displacement = displacement_px(trajectory, still.volume.spacing_mm)
    air = np.full(BLOCK_SHAPE, AIR_HU, np.float32)
    single = displacement.astype(np.float32)
    phase.move(block, single)
    timed = {
        "literal, scikit-image": _time(
            lambda: move_literally(air, block, trajectory.angles_rad, displacement)
        ),
        "phase, prodm": _time(lambda: phase.move(block, single), 20),
    }
    return _ranking(timed)


def _whole_excess(still: StillScan) -> Floats:
    excess = np.zeros(still.volume.shape, np.float32)
    excess[still.window] = still.excess
    return excess


def _time(run: Callable[[], Any], repeats: int = 1) -> tuple[float, float]:
    """Return the shortest wall time and its processor time."""
    times = []
    for _ in range(repeats):
        wall, core = time.perf_counter(), time.process_time()
        run()
        times.append((time.perf_counter() - wall, time.process_time() - core))
    return min(times)


def _ranking(timed: dict[str, tuple[float, float]]) -> list[Contestant]:
    slowest_s = timed["literal, scikit-image"][0]
    return [
        Contestant(name, wall_s, core_s, slowest_s / wall_s)
        for name, (wall_s, core_s) in timed.items()
    ]
