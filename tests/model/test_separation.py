"""A separator learns three things; each must be rewarded for being right and only then."""

import dataclasses

import pytest
import torch
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model.losses import Batch
from prodm.model.separation import (
    background_and_still,
    separation_loss,
    smoothed,
    where_calcium_passes,
)
from prodm.physics import phase

SURE = 12.0  # log-odds


def batch() -> Batch:
    """A lesion of 300 HU that is seen 6 pixels to the right, over tissue of 40 HU."""
    background = torch.full((1, 1, 32, 32), 0.24)
    still, moving = background.clone(), background.clone()
    still[..., 14:17, 10:13] += 0.3
    moving[..., 14:17, 16:19] += 0.3
    calcium = still > background
    return Batch(still, moving, calcium, calcium.long(), torch.ones(1, 3), background)


def perfect(data: Batch) -> Tensor:
    assert data.background is not None
    passes = where_calcium_passes(data.moving, data.background)
    gate = torch.logit(passes.clamp(1e-5, 1 - 1e-5))
    rests = torch.where(data.still > data.background + 0.06, SURE, -SURE)
    return torch.cat([gate, smoothed(data.moving - data.background), rests], dim=1)


def test_calcium_passes_where_the_image_changes_by_more_than_20_hu() -> None:
    data = batch()
    assert data.background is not None
    passes = where_calcium_passes(data.moving, data.background)
    assert passes[0, 0, 15, 17] == 1
    assert passes[0, 0, 15, 11] == 0
    faint = data.background + 0.019 * (data.moving > data.background)
    assert not where_calcium_passes(faint, data.background).any()
    dark = data.background - 0.021 * (data.moving > data.background)
    assert where_calcium_passes(dark, data.background).any()


def test_the_right_maps_lose_least() -> None:
    data = batch()
    best, parts = separation_loss(perfect(data), data)
    assert set(parts) == {"gate", "background", "still"}
    for channel in range(3):
        wrong = perfect(data)
        wrong[:, channel] = -wrong[:, channel]
        assert separation_loss(wrong, data)[0] > 1.1 * best


def test_the_background_counts_only_where_calcium_passes() -> None:
    data = batch()
    elsewhere = perfect(data)
    elsewhere[:, 1, :, :4] += 1.0
    assert separation_loss(elsewhere, data)[0] == separation_loss(perfect(data), data)[0]


def test_right_maps_give_the_background_and_the_place() -> None:
    data = batch()
    background, still = background_and_still(perfect(data), data.moving).chunk(2, dim=1)
    assert data.background is not None
    torch.testing.assert_close(background, data.background, atol=2e-3, rtol=0)
    torch.testing.assert_close(still, data.calcium.float(), atol=1e-4, rtol=0)


def test_closed_gates_leave_the_image_as_it_is() -> None:
    data = batch()
    maps = torch.cat([torch.full_like(data.still, -40.0), data.still, data.still], dim=1)
    background, _ = background_and_still(maps, data.moving).chunk(2, dim=1)
    torch.testing.assert_close(background, data.moving)


def test_a_batch_without_background_is_refused() -> None:
    data = dataclasses.replace(batch(), background=None)
    with pytest.raises(ProdmError, match="hold the background"):
        separation_loss(perfect(batch()), data)


def test_what_is_seen_is_judged_once_it_is_in_focus() -> None:
    """A tenth of a lesion that stays behind all along its way counts at the place of the lesion."""
    torch.manual_seed(0)
    background = torch.full((1, 1, 64, 64), 0.24)
    excess = torch.zeros_like(background)
    excess[..., 30:34, 30:34] = 0.4
    time = torch.arange(90)[:, None] / 90
    displacement = (time * torch.tensor([9.0, -5.0, 0.0]))[None]
    start = torch.tensor([0.4])
    moving = background + phase.move(excess, displacement, start_rad=start, padding=32)
    calcium = excess > 0
    data = Batch(
        background + excess, moving, calcium, calcium.long(), torch.ones(1, 3), background,
        displacement, start,
    )  # fmt: skip
    right = perfect(data)
    _, parts = separation_loss(right, data)
    lacking = right.clone()
    lacking[:, 1] *= 0.8
    _, fewer = separation_loss(lacking, data)
    assert float(fewer["refocused"]) > 2 * float(parts["refocused"])
    elsewhere = dataclasses.replace(data, displacement=-displacement)
    assert float(separation_loss(right, elsewhere)[1]["refocused"]) != float(parts["refocused"])
    invented = right.clone()
    invented[:, 0, 5:12, 5:12] = SURE
    invented[:, 1, 5:12, 5:12] = 0.5
    assert float(separation_loss(invented, data)[1]["refocused"]) > float(parts["refocused"])
