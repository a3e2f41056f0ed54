"""Held to its physics, a network can neither lose calcium nor make it up."""

import numpy as np
import pytest
import torch
from torch import Tensor

from prodm.model import normalise
from prodm.model.baselines import ModelSettings, Predict
from prodm.model.bridge import BrownianBridge
from prodm.model.consistency import correct_consistently, trust
from prodm.model.network import NetworkSettings
from prodm.model.sampler import SamplingSettings
from prodm.model.search import NUM_VIEWS, FoundMotion, SearchSettings
from prodm.physics import phase

SETTINGS = ModelSettings(
    network=NetworkSettings(num_slices=3, channels=(32,), attention=(False,), num_head_channels=32),
    bridge=BrownianBridge(1000, 0.0),
    sampling=SamplingSettings(num_jumps=2),
)
SEARCH = SearchSettings(start_rad=0.0)


def tissue() -> Tensor:
    grain = torch.randn(4, 64, 64, generator=torch.Generator().manual_seed(1))
    return 40 + 5 * torch.nn.functional.avg_pool2d(grain, 3, stride=1, padding=1)


def lesion() -> Tensor:
    y, x = torch.meshgrid(torch.arange(64) - 31.0, torch.arange(64) - 33.0, indexing="ij")
    one = 700 * torch.exp(-(x**2 / 9 + y**2 / 4))
    return torch.stack([one / 2, one, one / 3, 0 * one])


def moved() -> Tensor:
    time = torch.arange(NUM_VIEWS) / NUM_VIEWS
    theta = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS)).float()
    drift = FoundMotion(time * (9 * theta.cos() - 5 * theta.sin()), 0.0)
    return tissue() + drift.apply(lesion())


def knows_the_background(num_slices: int = 3) -> tuple[Predict, int]:
    def predict(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        from prodm.model.sampler import slice_windows

        behind = slice_windows(normalise(tissue())[None], num_slices)
        return torch.cat([behind, torch.zeros_like(behind)], dim=1)

    return predict, num_slices


def says(image_hu: Tensor) -> torch.nn.Module:
    """A network whose estimate is always the same image."""
    from prodm.model.sampler import slice_windows

    class Says(torch.nn.Module):
        def forward(self, xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
            return y - slice_windows((image_hu[None] + 200) / 1000, 3)

    return Says()


def correct(estimate_hu: Tensor) -> Tensor:
    network = says(estimate_hu)
    blocks = moved()[None].numpy().astype(np.float32)
    corrected = correct_consistently(
        blocks, (SETTINGS, network), knows_the_background(), seed=0, search=SEARCH
    )
    return torch.from_numpy(corrected)[0]


def error(corrected: Tensor) -> float:
    return float((corrected - tissue() - lesion()).norm() / lesion().norm())


def test_a_blurred_estimate_becomes_the_sharp_lesion_in_its_place() -> None:
    blurred = tissue() + torch.nn.functional.avg_pool2d(lesion(), 9, stride=1, padding=4)
    assert error(blurred) > 0.5
    assert error(correct(blurred)) < 0.35


def test_calcium_that_was_made_up_goes_again() -> None:
    invented = tissue() + lesion()
    invented[2, 8:14, 8:14] += 500
    corrected = correct(invented)
    assert float((corrected - tissue())[2, 8:14, 8:14].mean()) < 50
    assert error(corrected) < 0.35


def test_without_anything_that_moves_the_network_has_the_word() -> None:
    network = says(tissue() + 3)
    blocks = tissue()[None].numpy()
    corrected = correct_consistently(
        blocks, (SETTINGS, network), knows_the_background(), seed=0, search=SEARCH
    )
    np.testing.assert_allclose(corrected[0], tissue().numpy() + 3, atol=0.01)


def test_the_same_seed_gives_the_same_bits() -> None:
    estimate = tissue() + lesion()
    assert torch.equal(correct(estimate), correct(estimate))


def test_trust_grows_with_what_is_explained() -> None:
    shares = [trust(share) for share in np.linspace(-0.5, 1, 16)]
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[-1] == pytest.approx(1.0)
