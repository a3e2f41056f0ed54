"""A small store cut out of made-up scans: overlapping blocks, several motions, all parts."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage

from prodm.motion.profiles import draw
from prodm.pairs.blocks import MARGIN, cut, grow
from prodm.pairs.store import Pairs, ScanPairs, finish, split_of, write_scan
from prodm.physics import phase
from prodm.volume import Window

SPACING_MM = (3.0, 0.5, 0.5)
PROFILES = ("translation-x-small", "oscillation-y-medium", "jitter-large", "piecewise-x-small")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def window_at(z: int, y: int, x: int) -> Window:
    """Return the window of a block, without margin, whose first voxel is there."""
    return slice(z, z + 16), slice(y, y + 64), slice(x, x + 64)


WINDOWS = (window_at(2, 20, 20), window_at(4, 40, 40), window_at(20, 90, 10))


def scan_of(patient: str, *, with_calcium: bool = True) -> ScanPairs:
    """Return two blocks that overlap, with calcium in both, and one without.

    The third block reaches beyond the 30 slices of its scan.
    """
    rng = np.random.default_rng(sum(patient.encode()))
    shape = (30, 160, 160)
    background = ndimage.gaussian_filter(rng.normal(30, 250, shape), (1, 3, 3))
    background += rng.normal(0, 3, shape)
    excess = np.zeros(shape)
    if with_calcium:
        excess[8:11, 60:66, 62:66] = 500  # inside both blocks
        excess[6:8, 34:38, 34:40] = 300  # in the first alone
        excess[12:14, 88:91, 88:92] = 900  # in the second alone
    excess = ndimage.gaussian_filter(excess, (0.5, 1, 1)) * rng.uniform(0.6, 1.2)
    still = np.rint(background + excess).astype(np.int16)
    background = np.rint(background).astype(np.int16)
    moved = still - background
    trajectories = [draw(profile, rng, pixel_spacing_mm=0.5) for profile in PROFILES]
    windows = [grow(window, MARGIN) for window in WINDOWS]
    moving = []
    for trajectory in trajectories:
        path = (trajectory.displacement(trajectory.times) / (0.5, 0.5, 3.0)).astype(np.float32)
        whole = background.astype(np.float32)
        whole[2:18] += phase.move(moved[2:18].astype(np.float32), path, padding=32)
        moving.append(np.stack([cut(np.rint(whole).astype(np.int16), w) for w in windows]))
    return ScanPairs(
        scan=patient,
        patient=patient,
        spacing_mm=SPACING_MM,
        corners=tuple((z.start, y.start, x.start) for z, y, x in windows),
        trajectories=tuple(t.to_dict() for t in trajectories),
        amplitudes_px=(5.0, 9.0, 13.0, 6.0),
        still=np.stack([cut(still, w) for w in windows]),
        background=np.stack([cut(background, w) for w in windows]),
        calcium=np.stack([cut((excess >= 130).astype(np.uint8), w) for w in windows]),
        moving=np.stack(moving, axis=1),
    )


def patients_of(split: str, count: int) -> list[str]:
    names = (f"patient-{n}" for n in range(1000))
    return [name for name in names if split_of(name) == split][:count]


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    folder: Path = tmp_path_factory.mktemp("pairs")
    for split, count in (("train", 2), ("validation", 1), ("test", 3)):
        for patient in patients_of(split, count):
            write_scan(folder, scan_of(patient))
    free = patients_of("test", 4)[-1]
    write_scan(folder, scan_of(free, with_calcium=False))
    finish(folder, {"seed": 0}, [])
    return Pairs(folder)
