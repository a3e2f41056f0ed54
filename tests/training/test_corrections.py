"""What ProDM after the phase learns from: the truth of the very voxels that it is shown."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model.finishing import CLEAN, LESION, VIEWS
from prodm.model.motions import FoundMotion
from prodm.model.phasing import Phased, Separator
from prodm.pairs.blocks import STORED_SHAPE
from prodm.pairs.store import BlockRow
from prodm.physics.fitting import NUM_VIEWS
from prodm.training import corrections
from prodm.training.corrections import Correction, correct_moved, draw_correction, draw_corrections
from prodm.training.windows import Block, WindowSettings

SETTINGS = WindowSettings(random_start_share=0.0)
SEPARATOR = Separator(lambda *_: torch.zeros(0), 3, gaps=lambda blocks: 0 * blocks - 1.25)
SPACING_MM = (3.0, 0.5, 0.5)
SEEN = VIEWS.index("seen")


def block(n: int, *, with_calcium: bool = True) -> Block:
    """Tissue that is unlike at every place, with an uneven lesion in it."""
    rng = np.random.default_rng(n)
    background = rng.integers(-100, 100, STORED_SHAPE).astype(np.int16)
    z, y, x = np.mgrid[: STORED_SHAPE[0], : STORED_SHAPE[1], : STORED_SHAPE[2]]
    calcium = 700 * np.exp(-((x - 50) ** 2 / 8 + (y - 46) ** 2 / 3 + (z - 9) ** 2))
    calcium = np.where(calcium > 10, calcium, 0).round().astype(np.int16) * with_calcium
    row = BlockRow("scan", n, "patient", "train", 0, 0, 0, *SPACING_MM, int((calcium > 130).sum()))
    return Block(row, background + calcium, background, calcium > 130, 0)


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing moves, and the phase puts back half of what it sees over 100 HU."""
    rest = FoundMotion(torch.zeros(NUM_VIEWS), 0.0)

    def phased(blocks: Tensor, *_: object) -> list[Phased]:
        lesions = [(one - 100).clamp(min=0) / 2 for one in blocks]
        return [
            Phased(one, one, rest, lesion, lesion, 0 * one + 0.25)
            if bool((lesion > 60).any())
            else Phased(one, one, None)
            for one, lesion in zip(blocks, lesions, strict=True)
        ]

    monkeypatch.setattr(corrections, "drawn_motion", lambda *_: rest)
    monkeypatch.setattr(corrections, "correct_scan", phased)
    monkeypatch.setattr(corrections, "_correct_nearly", phased)


@pytest.mark.usefixtures("at_rest")
@pytest.mark.parametrize("seed", range(6))
def test_truth_and_views_are_of_the_same_voxels(seed: int) -> None:
    scan = [block(0), block(1), block(2, with_calcium=False)]
    made = correct_moved(scan, SEPARATOR, SETTINGS, np.random.default_rng(seed))
    assert made is not None
    seen = made.views[SEEN]
    np.testing.assert_array_equal(seen, made.still + made.background)  # as nothing moved
    together = made.views[CLEAN] + made.views[LESION]
    assert np.abs(together - seen).max() <= 1  # rounded on their own
    assert len(np.unique(made.block)) == 2  # nothing was put back in the block without calcium
    assert (np.diff(made.block) >= 0).all() or (np.diff(made.block) <= 0).all()
    np.testing.assert_array_equal(made.views[VIEWS.index("gap")], -125)
    np.testing.assert_array_equal(made.views[VIEWS.index("odds")], 250)


@pytest.mark.usefixtures("at_rest")
def test_windows_stay_in_their_block_and_have_their_units_back() -> None:
    scan = [block(0), block(1)]
    made = [correct_moved(scan, SEPARATOR, SETTINGS, np.random.default_rng(n)) for n in range(3)]
    kept = [one for one in made if one is not None]
    marked = [
        replace(one, background=np.broadcast_to(one.block[:, None, None], one.background.shape))
        for one in kept
    ]
    batch = draw_corrections(marked, num_slices=3, batch_size=24, seed=(1,), radius_pixels=3)
    assert batch.background is not None
    assert batch.views is not None
    in_hu = 1000 * batch.background - 200
    assert bool((in_hu.amax(dim=(1, 2, 3)) - in_hu.amin(dim=(1, 2, 3)) < 0.01).all())
    views = batch.views.reshape(24, len(VIEWS), 3, 64, 64)
    torch.testing.assert_close(views[:, VIEWS.index("gap")], torch.full((24, 3, 64, 64), -1.25))
    torch.testing.assert_close(views[:, VIEWS.index("odds")], torch.full((24, 3, 64, 64), 0.25))
    assert bool(batch.calcium[:, 1].any(dim=(1, 2)).all())
    again = draw_corrections(marked, num_slices=3, batch_size=24, seed=(1,), radius_pixels=3)
    assert again.views is not None
    assert torch.equal(batch.views, again.views)


@pytest.mark.usefixtures("at_rest")
def test_the_same_seed_makes_the_same_correction() -> None:
    first, second = (draw_correction([block(0)], SEPARATOR, SETTINGS, (3, 4)) for _ in range(2))
    for name in vars(first):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_scans_in_which_nothing_is_put_back_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(corrections, "correct_moved", lambda *_: None)
    with pytest.raises(ProdmError, match="nothing moved in 100 scans"):
        draw_correction([block(0)], SEPARATOR, SETTINGS, (0,))


def test_slices_to_learn_from_hold_calcium_or_what_was_taken_for_it() -> None:
    views = np.zeros((len(VIEWS), 4, 8, 8), np.int16)
    still = np.zeros((4, 8, 8), np.int16)
    still[1, 3, 3], views[LESION, 2, 4, 4] = 200, 90
    one = Correction(views, still, still, np.zeros(4, np.int16), np.ones(3, np.float32))
    assert one.slices.tolist() == [1, 2]
