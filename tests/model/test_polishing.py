"""What a lesion leaves behind must tell what is wrong with it, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model import HIGH_HU, LOW_HU, polishing
from prodm.model.losses import Batch, LossSettings, lesion_neighbourhoods
from prodm.model.motions import FoundMotion
from prodm.model.network import NetworkSettings
from prodm.model.polishing import (
    BRIGHTER,
    CLEAN,
    VIEWS,
    WEIGHED,
    Polisher,
    look_closer,
    polish,
    polishing_loss,
    tissue_power,
    weigh,
)
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

TINY = NetworkSettings(
    num_slices=3, channels=(8, 8), attention=(False, False), num_res_blocks=1,
    num_head_channels=8, norm_groups=4, fold=2,
)  # fmt: skip
LOSS = LossSettings(calcium="agatston", weight=0.5, tau_hu=20.0, radius_pixels=4)


def tissue() -> Tensor:
    """Soft tissue beside fat with a little grain, five slices."""
    column = torch.linspace(-100, 45, 64).expand(5, 64, 64)
    grain = torch.randn(5, 64, 64, generator=torch.Generator().manual_seed(1))
    return column + 5 * grain


def lesion(size: float = 1.0) -> Tensor:
    y, x = torch.meshgrid(torch.arange(64) - 31.0, torch.arange(64) - 33.0, indexing="ij")
    one = 400 * torch.exp(-(x**2 / 12 + y**2 / 8) / size)
    return torch.stack([0 * one, one / 2, one, one / 3, 0 * one])


def drift() -> FoundMotion:
    time = torch.arange(NUM_VIEWS) / NUM_VIEWS
    theta = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS)).float()
    return FoundMotion((time - 0.5) * (9 * theta.cos() - 5 * theta.sin()), 0.0)


def moved() -> Tensor:
    return tissue() + drift().apply(lesion())


def away(found: Tensor) -> float:
    return float((found - lesion()).norm() / lesion().norm())


def speckled() -> Tensor:
    grain = torch.randn(5, 64, 64, generator=torch.Generator().manual_seed(3))
    return lesion() + 60 * (lesion() > 40) * grain


@pytest.mark.parametrize(
    ("wrong", "left"),
    [
        (lesion(1.5), 0.9),
        (lesion(0.7), 0.7),
        (1.2 * lesion(), 0.65),
        (0.8 * lesion(), 0.55),
        (speckled(), 0.75),
    ],
    ids=["wide", "narrow", "bright", "faint", "speckled"],
)
def test_weighing_takes_part_of_an_error_away(wrong: Tensor, left: float) -> None:
    assert away(wrong) > 0.15
    assert away(weigh(moved(), drift(), wrong)) < left * away(wrong)


def test_what_is_right_stays_nearly_as_it_is() -> None:
    assert away(weigh(moved(), drift(), lesion())) < 0.05
    nothing = torch.zeros_like(lesion())
    assert torch.equal(weigh(moved(), drift(), nothing), nothing)


def test_pixels_beyond_a_lesion_and_those_beside_it_are_not_weighed() -> None:
    """One that is missing altogether is not put there."""
    half = lesion().clone()
    half[..., 33:] = 0
    weighed = weigh(moved(), drift(), half)
    assert not weighed[..., 34:].any()
    assert float(weighed.min()) == 0


def test_edges_of_tissue_count_little() -> None:
    """A rib through the block changes a lesion by far less than a lesion as bright would."""
    rib = torch.zeros_like(lesion())
    rib[:, 40:46] = 600.0
    assert away(weigh(moved() + rib, drift(), lesion())) < 0.25


def test_the_power_of_grain_is_its_variance_at_each_frequency() -> None:
    grain = 12 * torch.randn(200, 32, 32, generator=torch.Generator().manual_seed(0))
    power = tissue_power(grain)[1:-1]
    torch.testing.assert_close(power, torch.full_like(power, 144.0), rtol=0.1, atol=0)


def test_the_linear_system_is_solved() -> None:
    """As a direct solver does."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(8, 8, generator=generator)
    matrix, wanted = root @ root.T / 8 + torch.eye(8), torch.randn(8, generator=generator)
    found = polishing._solve(lambda x: matrix @ x, wanted)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, wanted), atol=1e-3, rtol=1e-3)


def test_views_show_the_image_without_the_lesion_and_what_is_left_of_it() -> None:
    views = dict(
        zip(VIEWS, look_closer(moved(), moved() - tissue(), drift(), lesion()), strict=True)
    )
    torch.testing.assert_close(views["lesion"], lesion())
    assert float((views["clean"] - tissue()).square().mean().sqrt()) < 2
    right = float(views["fine"][2, 28:35, 30:37].mean())
    missing = look_closer(moved(), moved() - tissue(), drift(), 0.3 * lesion())
    fine, coarse = missing[1], missing[2]
    assert float(fine[2, 31, 33]) > right + 30  # bright where something is missing,
    assert float(coarse[2, 31, 33]) > 5
    assert abs(float(fine[2, 8:14, 50:56].mean())) < 5  # and nowhere else


def test_the_middle_of_each_window_is_what_is_polished() -> None:
    """A network that says what was weighed changes nothing else."""

    def weighed(y: Tensor, generator: torch.Generator) -> Tensor:
        assert y.shape[1] == 3 * len(VIEWS)
        return y[:, 3 * WEIGHED + 1, None]

    moving = moved() - tissue()
    found = polish(moved(), moving, drift(), lesion(), (weighed, 3))
    torch.testing.assert_close(found / BRIGHTER, weigh(moved(), drift(), lesion()))


def test_a_lesion_is_polished_where_it_lies() -> None:
    """A network that sees calcium everywhere adds none to slices without any."""

    def bright(y: Tensor, generator: torch.Generator) -> Tensor:
        assert len(y) == 3
        return torch.full_like(y[:, :1], 300.0)

    found = polish(moved(), moved() - tissue(), drift(), lesion(), (bright, 3))
    held = torch.tensor([False, True, True, True, False])
    assert found.flatten(1).any(dim=1).tolist() == held.tolist()


def test_a_polisher_begins_with_what_was_weighed() -> None:
    network = Polisher(TINY)
    torch.nn.init.zeros_(network.scale)
    y = 100 * torch.rand(2, 15, 32, 32)
    found = network(y, y, torch.zeros(2))
    torch.testing.assert_close(found[:, 0] / y[:, 3 * WEIGHED + 1], torch.full((2, 32, 32), 0.982),
                               atol=1e-3, rtol=0)  # fmt: skip
    with pytest.raises(ProdmError, match="takes 5 views of 3 slices"):
        network(y[:, :12], y[:, :12], torch.zeros(2))


def batch(clean_hu: float, true_hu: Tensor) -> Batch:
    """One slice whose calcium is known, before tissue of 40 HU, and seen without it."""
    views = torch.zeros(1, 15, *true_hu.shape)
    views[:, 3 * CLEAN : 3 * CLEAN + 3] = clean_hu
    views[:, 3 * WEIGHED : 3 * WEIGHED + 3] = true_hu
    background = torch.full((1, 1, *true_hu.shape), (40.0 - LOW_HU) / (HIGH_HU - LOW_HU))
    still = background + true_hu / (HIGH_HU - LOW_HU)
    near = lesion_neighbourhoods((true_hu > 40).numpy(), 4)[None, None]
    return Batch(
        still, still, true_hu[None, None] > 90, torch.from_numpy(near.astype(np.int32)),
        torch.tensor([[3.0, 0.5, 0.5]]), background, views=views,
    )  # fmt: skip


def test_the_right_answer_costs_nothing_but_what_no_threshold_is_sure_of() -> None:
    true_hu = lesion()[2]
    _, parts = polishing_loss(true_hu[None, None], batch(40.0, true_hu), LOSS)
    assert float(parts["absolute"]) == pytest.approx(0, abs=1e-6)
    assert float(parts["calcium"]) == pytest.approx(0, abs=1e-6)
    for wrong in (1.3, 0.7):
        _, more = polishing_loss(wrong * true_hu[None, None], batch(40.0, true_hu), LOSS)
        assert float(more["absolute"]) > 0.3
        assert float(more["calcium"]) > 0.02


def test_calcium_that_should_not_reach_the_threshold_costs_where_it_does() -> None:
    """A lesion of 80 HU in 40 HU: 120 in all. It is made 50 HU too bright, and 50 too faint."""
    true_hu = torch.zeros(32, 32)
    true_hu[10:16, 10:16] = 80.0
    scores = []
    for added in (50.0, -50.0):
        made = true_hu + added * (true_hu > 0)
        _, parts = polishing_loss(made[None, None], batch(40.0, true_hu), LOSS)
        scores.append(float(parts["calcium"]))
    assert scores[0] > 3 * scores[1]
    assert scores[0] > 0.5


def test_what_is_left_in_the_image_counts_in_the_score() -> None:
    true_hu = lesion()[2]
    _, parts = polishing_loss(true_hu[None, None], batch(80.0, true_hu), LOSS)
    assert float(parts["absolute"]) == pytest.approx(0, abs=1e-6)
    assert float(parts["calcium"]) > 0.01


def test_a_polisher_needs_views() -> None:
    true_hu = lesion()[2]
    blind = replace(batch(40.0, true_hu), views=None)
    with pytest.raises(ProdmError, match="what a focuser saw"):
        polishing_loss(true_hu[None, None], blind, LOSS)
