"""A small store of made-up blocks, and settings small enough for a test."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage

from prodm.motion.profiles import draw
from prodm.pairs.blocks import STORED_SHAPE
from prodm.pairs.store import Pairs, ScanPairs, finish, write_scan
from prodm.physics import phase


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def scan_of(patient: str) -> ScanPairs:
    """Two blocks, with and without calcium, on a textured background; two motions."""
    rng = np.random.default_rng(sum(patient.encode()))
    background = ndimage.gaussian_filter(rng.normal(40, 300, (2, *STORED_SHAPE)), (0, 1, 3, 3))
    excess = np.zeros_like(background)
    excess[0, 8:12, 44:52, 46:50] = 400
    excess = ndimage.gaussian_filter(excess, (0, 0.7, 1, 1))
    still = np.rint(background + excess).astype(np.int16)
    background = np.rint(background).astype(np.int16)
    trajectories = [
        draw(profile, rng, pixel_spacing_mm=0.5)
        for profile in ("translation-x-small", "jitter-small")
    ]
    moving = [
        phase.move(
            (still - background).astype(np.float32),
            (t.displacement(t.times) / (0.5, 0.5, 3.0)).astype(np.float32),
        )
        for t in trajectories
    ]
    return ScanPairs(
        scan=patient,
        patient=patient,
        spacing_mm=(3.0, 0.5, 0.5),
        corners=((0, 0, 0), (0, 0, 0)),
        trajectories=tuple(t.to_dict() for t in trajectories),
        amplitudes_px=(5.0, 5.0),
        still=still,
        background=background,
        calcium=(excess >= 130).astype(np.uint8),
        moving=np.rint(background[:, None] + np.stack(moving, axis=1)).astype(np.int16),
    )


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    folder: Path = tmp_path_factory.mktemp("pairs")
    for n in range(6):  # patient-3 is a validation patient
        write_scan(folder, scan_of(f"patient-{n}"))
    finish(folder, {"seed": 0}, [])
    return Pairs(folder)
