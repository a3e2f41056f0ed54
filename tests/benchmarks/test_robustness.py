"""Each case changes one thing of the reference, and nothing else."""

import numpy as np
import pytest
from numpy.typing import NDArray

from prodm.benchmarks import robustness
from prodm.benchmarks.robustness import CASES, INNER, Block, noisy, reference, reprojected, turning
from prodm.pairs.blocks import STORED_SHAPE
from prodm.pairs.store import BlockRow


@pytest.fixture(autouse=True)
def few_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robustness, "NUM_VIEWS", 180)


@pytest.fixture(scope="module")
def block() -> Block:
    rng = np.random.default_rng(0)
    _, y, x = np.mgrid[: STORED_SHAPE[0], : STORED_SHAPE[1], : STORED_SHAPE[2]]
    background = 40 + 30 * np.sin(x / 9) + rng.normal(0, 5, STORED_SHAPE)
    excess = np.zeros(STORED_SHAPE)
    for z, centre_y, centre_x in ((9, 40, 44), (10, 60, 58)):
        lesion = 350 * np.exp(-((y[z] - centre_y) ** 2 / 8 + (x[z] - centre_x) ** 2 / 3))
        excess[z] += np.where(lesion > 2, lesion, 0)
    row = BlockRow("scan", 0, "patient", "validation", 20, 150, 250, 3.0, 0.5, 0.5, 80)
    return Block(0, row, np.rint(background).astype(np.int16), np.rint(excess).astype(np.int16))


def calcium(block: Block, case: str) -> NDArray[np.float32]:
    seen = CASES[case](block)
    return seen.moving - seen.background


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("noise")])
def test_every_case_keeps_the_calcium_and_smears_it(block: Block, case: str) -> None:
    seen = calcium(block, case)
    assert seen.shape == (16, 64, 64)
    assert seen.sum() == pytest.approx(block.excess.sum(), rel=0.1)
    assert seen.max() < 0.95 * block.excess.max()


@pytest.mark.parametrize("case", ["random start", "360 degrees", "fan beam", "lesions rotate"])
def test_what_the_scanner_or_the_lesion_does_shows(block: Block, case: str) -> None:
    still, seen = calcium(block, "reference"), calcium(block, case)
    assert np.linalg.norm(seen - still) > 0.05 * np.linalg.norm(still)


@pytest.mark.parametrize("as_one", [True, False])
def test_turning_by_nothing_is_the_reference(
    block: Block, as_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(robustness, "TURN_DEG", 0.0)
    np.testing.assert_allclose(
        turning(block, as_one=as_one).moving, reference(block).moving, atol=2.0
    )


def test_noise_has_the_strength_it_is_asked_for_and_spares_the_true_background(
    block: Block,
) -> None:
    still, seen = reference(block), noisy(block, 20.0)
    assert np.std(seen.moving - still.moving) == pytest.approx(20.0, rel=0.1)
    np.testing.assert_array_equal(seen.background, still.background)


def test_a_reprojected_background_is_nearly_the_background(block: Block) -> None:
    seen = reprojected(block)
    true = block.background[INNER]
    assert np.std(seen.background - true) < 0.2 * np.std(true)
    assert abs(np.mean(seen.background - true)) < 3.0
