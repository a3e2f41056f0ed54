"""Calcium losses: their gradients are true, and their scores become the real one as tau falls."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from prodm import agatston
from prodm.calcium import density_weight
from prodm.errors import ProdmError
from prodm.model import normalise, to_hu
from prodm.model.losses import (
    CALCIUM_LOSSES,
    Batch,
    LossSettings,
    dilate,
    lesion_neighbourhoods,
    soft_agatston,
    soft_volume_mm3,
    total_loss,
)
from prodm.volume import Grid, Volume

SPACING_MM = torch.tensor([[3.0, 0.5, 0.5], [2.5, 0.4, 0.6]], dtype=torch.float64)


def two_windows(seed: int = 0) -> Batch:
    """Soft tissue with noise; three lesions in the first window, one in the second."""
    rng = np.random.default_rng(seed)
    hu = rng.normal(40, 15, (2, 3, 24, 24))
    calcium = np.zeros(hu.shape, dtype=bool)
    for window, z, row, column, size, peak in [
        (0, 0, 3, 4, 3, 450.0),
        (0, 1, 3, 4, 2, 250.0),
        (0, 1, 15, 14, 4, 180.0),
        (1, 2, 10, 10, 3, 350.0),
    ]:
        place = (window, z, slice(row, row + size), slice(column, column + size))
        hu[place] = rng.uniform(135, peak, (size, size))
        hu[window, z, row, column] = peak
        calcium[place] = True
    still = torch.from_numpy(normalise(hu))
    moving = still.roll(2, dims=3)
    lesions = torch.from_numpy(lesion_neighbourhoods(calcium, radius_pixels=3))
    return Batch(still, moving, torch.from_numpy(calcium), lesions, SPACING_MM)


def hard_scores(hu: NDArray[np.float64], lesions: NDArray[np.int32]) -> list[float]:
    """Agatston score of each lesion, with a pencil: area x weight of the peak x slices."""
    scores = []
    for window, z in np.ndindex(hu.shape[:2]):
        dz, dy, dx = SPACING_MM[window].tolist()
        for label in sorted(set(lesions[window, z].flat) - {0}):
            voxels = hu[window, z][lesions[window, z] == label]
            area = dy * dx * np.count_nonzero(voxels >= 130)
            scores.append(float(area * density_weight(voxels.max()) * dz / 3))
    return scores


def test_the_scale_between_images_and_hu_goes_both_ways() -> None:
    hu = torch.tensor([-200.0, 130.0, 800.0])
    torch.testing.assert_close(to_hu(normalise(hu)), hu)
    assert normalise(torch.tensor([-1000.0, 2000.0])).tolist() == [0.0, 1.0]


def test_the_papers_volume_loss_by_hand() -> None:
    """One window of four voxels of 2 mm3; two of them are at 130 HU, half a voxel each."""
    spacing = torch.tensor([[2.0, 1.0, 1.0]])
    still = normalise(torch.tensor([130.0, 130.0, 190.0, 70.0])).reshape(1, 1, 2, 2)
    estimate = normalise(torch.full((1, 1, 2, 2), 130.0 + 60.0))
    none = torch.zeros(1, 1, 2, 2)
    batch = Batch(still, still, none.bool(), none.int(), spacing)
    sigma = 1 / (1 + np.exp(-1.0))
    score = 2 * (0.5 + 0.5 + sigma + (1 - sigma))  # = 4
    expected = (np.log(1 + 2 * 4 * sigma) - np.log(1 + score)) ** 2
    loss = CALCIUM_LOSSES["volume"](estimate, batch, LossSettings())
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_most_of_the_papers_volume_is_no_calcium() -> None:
    batch = two_windows()
    hu, everywhere = to_hu(batch.still), torch.ones_like(batch.still)
    share = {}
    for tau_hu in (60.0, 10.0):
        inside = soft_volume_mm3(hu, batch.spacing_mm, tau_hu, batch.calcium.double())
        share[tau_hu] = inside / soft_volume_mm3(hu, batch.spacing_mm, tau_hu, everywhere)
    assert (share[60.0] < 0.15).all()
    assert (share[10.0] > 0.8).all()


def test_soft_volume_becomes_the_volume_as_tau_falls() -> None:
    batch = two_windows()
    near = dilate(batch.calcium, 3).double()
    soft = soft_volume_mm3(to_hu(batch.still), batch.spacing_mm, 0.05, near)
    voxels = (to_hu(batch.still) >= 130).flatten(1).sum(1)
    assert voxels.tolist() == [9 + 4 + 16, 9]
    torch.testing.assert_close(soft, voxels * batch.spacing_mm.prod(1), rtol=1e-6, atol=0)


def test_soft_agatston_becomes_the_score_as_tau_falls() -> None:
    batch = two_windows()
    hu = to_hu(batch.still)
    real = hard_scores(hu.numpy(), batch.lesions.numpy())
    assert real == pytest.approx([9 * 0.25 * 4, 4 * 0.25 * 2, 16 * 0.25, 9 * 0.24 * 3 * 2.5 / 3])
    errors = []
    for tau_hu in (20.0, 5.0, 1.0, 0.05):
        soft, window = soft_agatston(hu, batch.lesions, batch.spacing_mm, tau_hu)
        assert window.tolist() == [0, 0, 0, 1]
        errors.append(float((soft - torch.tensor(real)).abs().max()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-5


def test_soft_agatston_agrees_with_the_scorer_of_this_package() -> None:
    batch = two_windows()
    hu = to_hu(batch.still)
    soft, window = soft_agatston(hu, batch.lesions, batch.spacing_mm, tau_hu=0.05)
    for n, spacing in enumerate(batch.spacing_mm.tolist()):
        values = hu[n].numpy().astype(np.float32)
        scan = Volume(values, Grid(values.shape, tuple(spacing)))
        real = agatston.score(scan, batch.lesions[n].numpy() > 0)
        assert float(soft[window == n].sum()) == pytest.approx(real.agatston, rel=1e-5)


@pytest.mark.parametrize("name", ["volume", "neighbourhood", "agatston"])
@pytest.mark.parametrize("tau_hu", [60.0, 20.0])
def test_gradients_of_calcium_losses_are_true(name: str, tau_hu: float) -> None:
    whole = two_windows()
    crop = (slice(None), slice(0, 2), slice(0, 9), slice(0, 9))
    batch = Batch(
        whole.still[crop],
        whole.moving[crop],
        whole.calcium[crop],
        whole.lesions[crop],
        whole.spacing_mm,
    )
    settings = LossSettings(calcium=name, tau_hu=tau_hu)  # type: ignore[arg-type]

    def loss(estimate: Tensor) -> Tensor:
        return CALCIUM_LOSSES[name](estimate, batch, settings)

    estimate = batch.moving.clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, (estimate,), eps=1e-6, atol=1e-7)
    (gradient,) = torch.autograd.grad(loss(estimate), estimate)
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("name", ["none", "volume", "neighbourhood", "agatston"])
def test_the_truth_has_no_loss(name: str) -> None:
    batch = two_windows()
    total, parts = total_loss(batch.still, batch, LossSettings(calcium=name))  # type: ignore[arg-type]
    assert float(total) == 0
    assert set(parts) == {"image", "calcium"}


@pytest.mark.parametrize("name", ["volume", "neighbourhood", "agatston"])
def test_a_window_counts_with_its_own_pixel_spacing(name: str) -> None:
    batch = two_windows()
    finer = Batch(batch.still, batch.moving, batch.calcium, batch.lesions, SPACING_MM / 2)
    settings = LossSettings(calcium=name, tau_hu=20.0)  # type: ignore[arg-type]
    faded = 0.8 * batch.still
    assert CALCIUM_LOSSES[name](faded, batch, settings) > CALCIUM_LOSSES[name](
        faded, finer, settings
    )


def test_losses_limited_to_calcium_ignore_what_is_far_from_it() -> None:
    batch = two_windows()
    invented = batch.still.clone()
    invented[:, :, 22:, 22:] = 1.0
    for name in ("neighbourhood", "agatston"):
        settings = LossSettings(calcium=name, radius_pixels=3)
        assert float(CALCIUM_LOSSES[name](invented, batch, settings)) == 0
    assert CALCIUM_LOSSES["volume"](invented, batch, LossSettings()) > 0


def test_a_batch_without_calcium_has_no_calcium_loss() -> None:
    batch = two_windows()
    none = torch.zeros_like(batch.lesions)
    empty = Batch(batch.still, batch.moving, none.bool(), none, SPACING_MM)
    for name in ("neighbourhood", "agatston"):
        estimate = batch.moving.clone().requires_grad_()
        loss = CALCIUM_LOSSES[name](estimate, empty, LossSettings(calcium=name))
        (gradient,) = torch.autograd.grad(loss, estimate)
        assert not gradient.any()
        assert float(loss.detach()) == 0


def test_each_window_weighs_the_same_however_many_lesions_it_has() -> None:
    batch, settings = two_windows(), LossSettings(calcium="agatston", tau_hu=20.0)
    parts = []
    for n in range(2):
        at = slice(n, n + 1)
        one = Batch(
            batch.still[at], batch.moving[at], batch.calcium[at], batch.lesions[at], SPACING_MM[at]
        )
        parts.append(CALCIUM_LOSSES["agatston"](one.moving, one, settings))
    both = CALCIUM_LOSSES["agatston"](batch.moving, batch, settings)
    torch.testing.assert_close(both, (parts[0] + parts[1]) / 2)


def test_neighbourhoods_follow_the_nearest_lesion_in_each_slice() -> None:
    calcium = np.zeros((2, 12, 12), dtype=bool)
    calcium[0, 2, 2] = calcium[0, 3, 3] = calcium[0, 3, 8] = calcium[1, 6, 6] = True
    labels = lesion_neighbourhoods(calcium, radius_pixels=4)
    assert labels[0, 2, 2] == labels[0, 3, 3] != labels[0, 3, 8]  # diagonal pixels touch
    assert labels[0, 3, 5] == labels[0, 3, 3]
    assert labels[0, 3, 6] == labels[0, 3, 8]
    assert labels[0, 11, 0] == 0
    assert labels[1, 6, 10] == 1
    assert labels[1, 6, 11] == 0


def test_batches_and_losses_that_do_not_fit_are_refused() -> None:
    image = torch.zeros(2, 3, 8, 8)
    with pytest.raises(ProdmError, match=r"all be \[B, k, Y, X\]"):
        Batch(image, image[:1], image.bool(), image.int(), torch.ones(2, 3))
    with pytest.raises(ProdmError, match="as many spacings"):
        Batch(image, image, image.bool(), image.int(), torch.ones(3))
    with pytest.raises(ProdmError, match="one of none, volume, neighbourhood, agatston"):
        LossSettings(calcium="mass")  # type: ignore[arg-type]
    with pytest.raises(ProdmError, match="tau_hu > 0"):
        LossSettings(tau_hu=0.0)
