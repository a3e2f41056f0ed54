"""The fast picture beside the printed algorithm's, over all calcium of a scan, motion by motion.

Both see the same calcium, trajectory and views. Projection and reconstruction are linear, so the
printed algorithm moves the calcium alone, in air, and the kept background is added afterwards: the
scan's own tissue would only hide a difference. It is run twice: as it is raced, and sharp, on
halves of a pixel with cubic interpolation, where finer grids change it no more. At rest the right
answer is known, the still scan, and shows which of the two can be trusted.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from prodm import agatston
from prodm.benchmarks.literal_algorithm import move_literally
from prodm.calcium import AIR_HU
from prodm.motion.trajectory import Trajectory
from prodm.pairs.simulate import StillScan, displacement_px, move
from prodm.volume import Volume, Window

Floats = NDArray[np.float32]

OVERSAMPLING = 2  # of the sharp algorithm
NEAR_PX = 2  # beyond where calcium comes: this is compared
MARGIN_PX = 8  # beyond where calcium comes: this is air


@dataclass(frozen=True)
class Picture:
    """How like the printed algorithm's the fast picture is, where calcium is or comes."""

    profile: str
    correlation: float  # of the moving scan, with the sharp printed algorithm
    correlation_of_calcium: float  # of the moving calcium alone: no background helps
    agatston_fast: float
    agatston_literal: float  # sharp
    agatston_raced: float  # by the printed algorithm as it is raced, which blurs
    agatston_still: float  # before the motion
    agatston_background: float  # of what does not move in the compared region


@dataclass(frozen=True, eq=False)
class Case:
    """The calcium alone in the middle of square slices of air, with room for its motion."""

    trajectory: Trajectory
    displacement: NDArray[np.float64]
    excess: Floats
    near: NDArray[np.bool_]  # the region compared
    shown: Window  # the part of the slices that lies in the scan
    window: Window  # the same part, in voxels of the scan


def compare_pictures(
    still: StillScan,
    trajectories: Sequence[Trajectory],
    *,
    oversampling: int = OVERSAMPLING,
    workers: int = 1,
) -> Iterator[Picture]:
    """Compare the whole calcium of a scan along each trajectory, on so many processes."""
    literal = partial(_literal, oversampling)
    cases = [_case(still, trajectory) for trajectory in trajectories]
    if workers == 1:
        yield from (_compare(still, case, literal(case)) for case in cases)
        return
    with ProcessPoolExecutor(min(workers, len(cases)), get_context("spawn")) as pool:
        for case, moved in zip(cases, pool.map(literal, cases), strict=True):
            yield _compare(still, case, moved)


def _case(still: StillScan, trajectory: Trajectory) -> Case:
    displacement = displacement_px(trajectory, still.volume.spacing_mm)
    reach_px = int(np.ceil(np.abs(displacement[:, :2]).max()))
    reach_slices = int(np.ceil(np.abs(displacement[:, 2]).max()))
    margin = reach_px + MARGIN_PX
    slices, rows, columns = still.excess.shape
    side = max(rows, columns) + 2 * margin
    depth = slices + 2 * reach_slices
    padding, shown, window = [], [], []
    for length, size, held, full in zip(
        still.excess.shape, (depth, side, side), still.window, still.volume.shape, strict=True
    ):
        before = (size - length) // 2
        start = held.start - before  # of the slices of air, in voxels of the scan
        inside = slice(max(0, start), min(full, start + size))
        padding.append((before, size - length - before))
        window.append(inside)
        shown.append(slice(inside.start - start, inside.stop - start))
    excess = np.pad(still.excess, padding).astype(np.float32)
    in_plane = 2 * (reach_px + NEAR_PX) + 1
    near = ndimage.maximum_filter(excess != 0, size=(2 * reach_slices + 1, in_plane, in_plane))
    return Case(
        trajectory,
        displacement,
        excess,
        near,
        (shown[0], shown[1], shown[2]),
        (window[0], window[1], window[2]),
    )


def _literal(oversampling: int, case: Case) -> tuple[Floats, Floats]:
    """Return the moving calcium, in HU above the background: sharp, and as raced."""
    air = np.full(case.excess.shape, AIR_HU, np.float32)
    run = partial(
        move_literally,
        air,
        case.excess,
        case.trajectory.angles_rad,
        case.displacement,
        air_hu=AIR_HU,
    )
    sharp = run(interpolation="cubic", oversampling=oversampling)
    return sharp - np.float32(AIR_HU), run() - np.float32(AIR_HU)


def _compare(still: StillScan, case: Case, literal: tuple[Floats, Floats]) -> Picture:
    fast = move(still, case.trajectory, window=case.window)
    near = case.near[case.shown]
    sharp, raced = (moved[case.shown] for moved in literal)
    background = fast.background.hu
    pictures = (
        fast.moving.hu,
        background + sharp,
        background + raced,
        background + case.excess[case.shown],
        background,
    )
    scores = [_agatston(fast.moving, hu.astype(np.float32), near) for hu in pictures]
    return Picture(
        case.trajectory.profile,
        _correlation(pictures[0][near], pictures[1][near]),
        _correlation(fast.excess[near], sharp[near]),
        *scores,
    )


def _agatston(volume: Volume, hu: Floats, region: NDArray[np.bool_]) -> float:
    return float(agatston.score(volume.with_hu(hu), region).agatston)


def _correlation(one: NDArray[Any], other: NDArray[Any]) -> float:
    return float(np.corrcoef(one, other)[0, 1])
