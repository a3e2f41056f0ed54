"""A small moving scan whose truth is known, and correctors that know it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import ndimage

from prodm.correction.correctors import Identity
from prodm.correction.geometry import Blocks, SpacingRange, choose_sampling
from prodm.pairs.blocks import BLOCK_SHAPE
from prodm.physics import phase
from prodm.runs import Progress, no_progress
from prodm.volume import Grid, Vector, Volume

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Moved:
    """A still scan, the same scan with its calcium in motion, and the heart."""

    still: Volume
    moving: Volume
    heart: Mask


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_moved(
    shape: tuple[int, int, int] = (22, 120, 140),
    spacing_mm: Vector = (3.0, 0.6, 0.6),
    *,
    dtype: type[np.int16] | type[np.float32] = np.int16,
    lesions: tuple[tuple[int, int, int, float], ...] = (
        (5, 40, 45, 700.0),
        (6, 75, 90, 1500.0),
        (15, 62, 100, 420.0),
    ),
) -> Moved:
    """Three plaques in soft tissue, moved by an oscillation of 4 mm; ribs outside the heart."""
    rng = np.random.default_rng(7)
    background = np.full(shape, 40.0) + ndimage.gaussian_filter(
        rng.normal(0, 25, shape), (0, 0.7, 0.7)
    )
    heart = np.zeros(shape, bool)
    heart[:, 12:-12, 12:-12] = True
    background[:, :6, :] = 700.0  # ribs
    background[:, 30:40, -6:] = 400.0
    excess = np.zeros(shape)
    for z, y, x, hu in lesions:
        excess[z : z + 2, y : y + 3, x : x + 4] = hu
    blur_px = 0.6 / spacing_mm[1]
    excess = ndimage.gaussian_filter(excess, (0.3, blur_px, blur_px))
    turns = np.linspace(0, 2 * np.pi, 90, endpoint=False)
    amplitude_px = 4.0 / spacing_mm[1] / 2
    displacement = np.stack([amplitude_px * np.sin(turns), 0.5 * amplitude_px * np.cos(turns),
                             np.zeros(90)], axis=1).astype(np.float32)  # fmt: skip
    moved = phase.move(excess.astype(np.float32), displacement)
    grid = Grid(shape, spacing_mm, (-40.0, -30.0, 12.0))

    def volume(hu: NDArray[np.float64]) -> Volume:
        return Volume(hu.astype(np.float32) if dtype == np.float32 else _int16(hu), grid)

    return Moved(volume(background + excess), volume(background + moved), heart)


def _int16(hu: NDArray[np.float64]) -> NDArray[np.int16]:
    return np.rint(hu).astype(np.int16)


@pytest.fixture(scope="session")
def moved() -> Moved:
    return make_moved()


@pytest.fixture
def move_made() -> Callable[..., Moved]:
    """Return ``make_moved``."""
    return make_moved


@dataclass(frozen=True, eq=False)
class Oracle(Identity):
    """Knows the still scan: finds where a block was cut, and returns the truth there."""

    moved: Moved | None = None
    name: str = "oracle"
    sha256: str | None = "0" * 64
    calibration: None = None
    num_slices: int = 3
    known: SpacingRange = field(default_factory=SpacingRange)
    table: dict[bytes, Blocks] = field(default_factory=dict)

    def __call__(
        self,
        blocks_hu: Blocks,
        spacing_mm: Vector,
        *,
        steps: int | None,
        seed: int,
        progress: Progress = no_progress,
    ) -> Blocks:
        return np.stack([self._truth(block) for block in blocks_hu])

    def _truth(self, block: Blocks) -> Blocks:
        if not self.table:
            for moving, still in zip(*self.pairs(), strict=True):
                self.table[moving.tobytes()] = still
        return self.table[block.tobytes()]

    def pairs(self) -> tuple[Blocks, Blocks]:
        from prodm.correction.candidates import find_candidates
        from prodm.correction.correct import make_plan

        assert self.moved is not None
        moving, still = self.moved.moving, self.moved.still
        sampling = choose_sampling(moving.spacing_mm, self.known)
        plan = make_plan(
            find_candidates(moving, self.moved.heart).mask, sampling, moving.spacing_mm
        )
        both = [
            np.concatenate([sampling.take(volume.hu, window) for window in plan.windows])
            for volume in (moving, still)
        ]
        assert both[0].shape[1:] == BLOCK_SHAPE
        return both[0], both[1]


@pytest.fixture
def oracle() -> type[Oracle]:
    return Oracle
