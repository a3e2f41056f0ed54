"""Windows must be true pairs: same place, same background, calcium that only moved."""

import numpy as np
import pytest
import torch

from prodm.errors import ProdmError
from prodm.model import normalise, to_hu
from prodm.model.losses import Batch
from prodm.pairs.store import Pairs
from prodm.training.windows import WindowSettings, draw_batch, load_blocks


def batch_of(pairs: Pairs, settings: WindowSettings, seed: int = 0, size: int = 12) -> Batch:
    return draw_batch(
        pairs,
        load_blocks(pairs, "train"),
        settings,
        num_slices=3,
        batch_size=size,
        seed=(seed, 0),
        radius_pixels=4,
    )


def test_the_same_seed_draws_the_same_batch(pairs: Pairs) -> None:
    first, again = (batch_of(pairs, WindowSettings()) for _ in range(2))
    other = batch_of(pairs, WindowSettings(), seed=1)
    assert torch.equal(first.moving, again.moving)
    assert not torch.equal(first.moving, other.moving)


def test_a_sample_does_not_depend_on_the_size_of_its_batch(pairs: Pairs) -> None:
    many, few = (
        batch_of(pairs, WindowSettings(), size=12),
        batch_of(pairs, WindowSettings(), size=4),
    )
    assert torch.equal(many.still[:4], few.still)
    torch.testing.assert_close(many.moving[:4], few.moving, atol=1e-5, rtol=0)


def test_without_motion_moving_equals_still(pairs: Pairs) -> None:
    batch = batch_of(pairs, WindowSettings(rest_share=1.0))
    torch.testing.assert_close(batch.moving, batch.still, atol=1e-5, rtol=0)


def test_motion_moves_calcium_and_keeps_its_sum(pairs: Pairs) -> None:
    batch = batch_of(pairs, WindowSettings(calcium_share=1.0, size=96), size=24)
    assert not torch.allclose(batch.moving, batch.still, atol=1e-3)
    blocks = load_blocks(pairs, "train")
    excess = np.mean([(b.still - b.background).sum(axis=(1, 2)).max() for b in blocks[::2]])
    lost = to_hu(batch.moving).sum(dim=(2, 3)) - to_hu(batch.still).sum(dim=(2, 3))
    assert float(lost.mean()) == pytest.approx(0, abs=0.25 * float(excess))


def test_calcium_is_seen_as_often_as_asked(pairs: Pairs) -> None:
    with_calcium = batch_of(pairs, WindowSettings(calcium_share=1.0), size=32).calcium
    assert with_calcium.flatten(1).any(dim=1).float().mean() > 0.95
    mixed = batch_of(pairs, WindowSettings(calcium_share=0.0), size=64).calcium
    assert 0.3 < mixed.flatten(1).any(dim=1).float().mean() < 0.7


def test_calcium_mask_and_image_stay_together(pairs: Pairs) -> None:
    batch = batch_of(pairs, WindowSettings(calcium_share=1.0), size=32)
    assert (to_hu(batch.still)[batch.calcium] > 130).float().mean() > 0.9
    assert batch.lesions[batch.calcium].min() >= 1


def test_stored_pairs_are_the_stored_ones(pairs: Pairs) -> None:
    settings = WindowSettings(moved="stored", size=96, calcium_share=1.0)
    batch = batch_of(pairs, settings, size=4)
    stored = [
        normalise(torch.from_numpy(pairs.read_moving(row, motion).astype(np.float32)))
        for row in pairs.blocks
        if row.split == "train"
        for motion in (0, 1)
    ]
    for moving in batch.moving:
        assert any(
            torch.equal(moving, block[z : z + 3]) for block in stored for z in range(len(block) - 2)
        )


def test_other_window_widths_and_depths_fit(pairs: Pairs) -> None:
    blocks = load_blocks(pairs, "train")
    batch = draw_batch(
        pairs,
        blocks,
        WindowSettings(size=32),
        num_slices=9,
        batch_size=2,
        seed=(0, 0),
        radius_pixels=4,
    )
    assert batch.moving.shape == (2, 9, 32, 32)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ProdmError, match="windows can be 1 to 96 pixels wide, got 128"):
        WindowSettings(size=128)
    with pytest.raises(ProdmError, match="calcium_share must lie between 0 and 1, got 2"):
        WindowSettings(calcium_share=2.0)


def test_a_part_without_calcium_is_refused(pairs: Pairs) -> None:
    with pytest.raises(ProdmError, match="no block with calcium in its test part"):
        load_blocks(pairs, "test")
