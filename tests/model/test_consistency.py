"""Held to its physics, a network can neither lose calcium nor make it up."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from prodm.model import consistency, normalise
from prodm.model.baselines import ModelSettings
from prodm.model.bridge import BrownianBridge
from prodm.model.consistency import TRUSTED, Phases, correct_consistently
from prodm.model.motions import FoundMotion
from prodm.model.network import NetworkSettings
from prodm.model.phasing import Phased, Separator, trust
from prodm.model.placing import place_of
from prodm.model.reading import NUM_ANGLES, angles_rad
from prodm.model.sampler import SamplingSettings, may_hold_calcium, slice_windows
from prodm.model.search import SearchSettings
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

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


def of_seen_slices(image_hu: Tensor, seen_hu: Tensor) -> Tensor:
    """Windows of an image for the slices that a network is shown of what is seen."""
    wanted = may_hold_calcium(normalise(seen_hu)[None])
    return slice_windows((image_hu[None] + 200) / 1000, 3)[wanted]


def knows_the_background(behind_hu: Tensor, seen_hu: Tensor) -> Separator:
    """A separator that also has an idea of where the calcium rests."""

    def predict(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        behind = of_seen_slices(behind_hu, seen_hu)
        rests = of_seen_slices(lesion(), seen_hu).clamp(min=0) / 2  # not at all sure
        return torch.cat([behind, rests], dim=1)

    return Separator(predict, 3)


def correct(estimate_hu: Tensor, seen_hu: Tensor, behind_hu: Tensor) -> Tensor:
    """Correct with a network whose estimate is always the same image."""

    class Says(torch.nn.Module):
        def forward(self, xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
            return y - of_seen_slices(estimate_hu, seen_hu)

    corrected = correct_consistently(
        seen_hu[None].numpy(),
        (SETTINGS, Says()),
        Phases(knows_the_background(behind_hu, seen_hu), SEARCH),
        seed=0,
    )
    return torch.from_numpy(corrected)[0]


def error(corrected: Tensor) -> float:
    return float((corrected - tissue() - lesion()).norm() / lesion().norm())


def test_a_blurred_estimate_becomes_the_sharp_lesion_in_its_place() -> None:
    blurred = tissue() + torch.nn.functional.avg_pool2d(lesion(), 9, stride=1, padding=4)
    assert error(blurred) > 0.5
    assert error(correct(blurred, moved(), tissue())) < 0.35


def test_calcium_that_was_made_up_goes_again() -> None:
    invented = tissue() + lesion()
    invented[2, 8:14, 8:14] += 500
    corrected = correct(invented, moved(), tissue())
    assert float((corrected - tissue())[2, 8:14, 8:14].mean()) < 50
    assert error(corrected) < 0.35


def test_a_network_that_paints_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the phase is not trusted at all, a network may give as much calcium as moves."""
    monkeypatch.setattr(consistency, "TRUSTED", (2.0, 3.0))
    modest, painted = (tissue() + amount * lesion() for amount in (0.5, 40.0))
    torch.testing.assert_close(correct(modest, moved(), tissue()), modest, atol=0.1, rtol=0)
    assert error(correct(painted, moved(), tissue())) < 0.06 * error(painted)


def test_a_block_in_which_nothing_moves_stays_as_it_is() -> None:
    bone = tissue()
    bone[1, 10:20, 10:20] = 300
    painted = bone.clone()
    painted[1, 40:44, 40:44] = 400
    assert torch.equal(correct(painted, bone, bone), bone)


def test_tissue_alone_is_left_alone() -> None:
    assert torch.equal(correct(tissue() + 3, tissue(), tissue()), tissue())


def test_the_same_seed_gives_the_same_bits() -> None:
    estimate = tissue() + lesion()
    assert torch.equal(*(correct(estimate, moved(), tissue()) for _ in range(2)))


def test_trust_grows_with_what_is_explained() -> None:
    shares = [trust(share, TRUSTED) for share in np.linspace(-0.5, 1, 16)]
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[-1] == pytest.approx(1.0)


def test_samples_of_a_scan_share_its_motions() -> None:
    """With a reader the phases of a scan are worked out once, whatever was drawn before."""
    count = 0

    def predict(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        nonlocal count
        count += len(y)
        behind = of_seen_slices(tissue(), moved())
        return torch.cat([behind.repeat(2, 1, 1, 1)[: len(y)], torch.zeros_like(y)], dim=1)

    def read(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        angles = angles_rad()
        drift = angles / np.pi * (9 * angles.cos() - 5 * angles.sin())
        return torch.stack([drift, torch.zeros(NUM_ANGLES)]).expand(len(y), -1, -1)

    phases = Phases(Separator(predict, 3, reader=(read, 3)), SEARCH)
    generator = torch.Generator().manual_seed(0)
    scan = torch.stack([moved(), moved()])
    first, second = phases(scan, generator)
    num_slices = count
    assert phases(scan, generator)[0] is first
    assert count == num_slices > 0
    assert first.motion is not None
    assert first.motion is second.motion
    assert error(first.corrected_hu) < error(moved())
    phases(scan + 1, generator)
    assert count == 2 * num_slices
    (elsewhere, _) = Phases(phases.separator, SEARCH)(scan, generator)
    assert torch.equal(elsewhere.corrected_hu, first.corrected_hu)


@pytest.mark.parametrize("shares", [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_a_network_is_called_where_a_block_listens_to_it(
    monkeypatch: pytest.MonkeyPatch, shares: tuple[float, float]
) -> None:
    """And the block that does not listen is the same whether it is called or not."""
    phased = [
        Phased(tissue() + lesion(), lesion(), None),
        Phased(tissue() + 2 * lesion(), lesion(), None),
    ]
    given = {id(one): share for one, share in zip(phased, shares, strict=True)}
    monkeypatch.setattr(consistency, "_share", lambda one: given[id(one)])
    seen = torch.stack([moved(), moved()])
    calls = 0

    class Says(torch.nn.Module):
        def forward(self, xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return torch.zeros_like(y)  # nothing is to change

    class Known(Phases):
        def __call__(self, *_: object) -> list[Phased]:
            return phased

    phases = Known(knows_the_background(tissue(), moved()))
    corrected = torch.from_numpy(
        correct_consistently(seen.numpy(), (SETTINGS, Says()), phases, seed=0)
    )
    assert (calls > 0) == (min(shares) < 1)
    for one, block, share in zip(phased, corrected, shares, strict=True):
        wanted = one.corrected_hu if share == 1 else moved()
        torch.testing.assert_close(block, wanted, atol=0.01, rtol=0)


def test_where_tissue_moves_calcium_stays_where_it_was_seen_on_average() -> None:
    separator = knows_the_background(tissue(), moved())
    generator = torch.Generator().manual_seed(0)
    away = []
    for rests in (True, False):
        (block,) = Phases(replace(separator, tissue_rests=rests), SEARCH)(moved()[None], generator)
        assert block.motion is not None
        away.append(float(place_of(block.motion).norm()))
    assert away[0] > 2  # a drift of 9 and 5 pixels, from where it rested
    assert away[1] < 0.05
