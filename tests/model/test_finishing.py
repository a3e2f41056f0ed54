"""After the phase, the bridge ends on the clean image with calcium in it, and on nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model import HIGH_HU, LOW_HU, to_hu
from prodm.model.baselines import ModelSettings, Predict, build_network, build_predict
from prodm.model.bridge import BrownianBridge
from prodm.model.consistency import Phases, correct_consistently, finish, look_last
from prodm.model.finishing import CLEAN, LESION, VIEWS, finishing_loss, overlap_loss
from prodm.model.losses import Batch, LossSettings, lesion_neighbourhoods
from prodm.model.motions import FoundMotion
from prodm.model.network import NetworkSettings
from prodm.model.phasing import Phased, Separator
from prodm.model.sampler import SamplingSettings
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

SETTINGS = ModelSettings(
    method="prodm-phase",
    network=NetworkSettings(
        channels=(8, 8), attention=(False, False), num_res_blocks=1, num_head_channels=8,
        norm_groups=4, fold=2,
    ),
    bridge=BrownianBridge(1000, 2.0),
    sampling=SamplingSettings(num_jumps=3),
)  # fmt: skip
LOSS = LossSettings(calcium="agatston", weight=0.3, tau_hu=5.0, radius_pixels=4)


def lesion(x_px: float = 0.0) -> Tensor:
    y, x = torch.meshgrid(torch.arange(64) - 31.0, torch.arange(64) - 33.0 - x_px, indexing="ij")
    one = 700 * torch.exp(-(x**2 / 9 + y**2 / 4))
    return torch.stack([0 * one, 0 * one, one / 2, one, one / 3, 0 * one, 0 * one, 0 * one])


def tissue() -> Tensor:
    grain = torch.randn(8, 64, 64, generator=torch.Generator().manual_seed(1))
    return 40 + 5 * grain


def drift() -> FoundMotion:
    time = torch.arange(NUM_VIEWS) / NUM_VIEWS
    theta = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS)).float()
    return FoundMotion(time * (9 * theta.cos() - 5 * theta.sin()), 0.0)


def moved() -> Tensor:
    return tissue() + drift().apply(lesion())


def put_back(lesion_hu: Tensor) -> Phased:
    """What the phase leaves that took the moving lesion away and put another one back."""
    still = lesion_hu
    return Phased(tissue() + still, lesion(), drift(), still, still, 0 * still)


def seeing(*, tissue_rests: bool = True) -> Separator:
    return Separator(lambda *_: torch.zeros(0), 3, gaps=torch.zeros_like, tissue_rests=tissue_rests)


def says(calcium_hu: Tensor) -> tuple[Predict, int]:
    """A network that sees this calcium, whatever it is shown."""

    def predict(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        views = y.reshape(len(y), len(VIEWS), 3, *y.shape[2:])
        slices = [
            int((tissue() - one).abs().sum(dim=(1, 2)).argmin()) for one in views[:, CLEAN, 1]
        ]
        here = calcium_hu[torch.tensor(slices)][:, None].expand(-1, 3, -1, -1)
        estimate: Tensor = (views[:, CLEAN] + here - LOW_HU) / (HIGH_HU - LOW_HU)
        return estimate

    return predict, 3


def test_an_untrained_network_leaves_most_of_what_the_phase_found_and_all_tissue() -> None:
    network = build_network(SETTINGS, seed=0)
    views = look_last(moved(), put_back(lesion()), seeing())[:, 2:5].flatten(0, 1)[None]
    corrected = to_hu(build_predict(SETTINGS, network)(views, torch.Generator()))[0]
    kept = torch.sigmoid(torch.tensor(4.0))
    torch.testing.assert_close(
        corrected, tissue()[2:5] + kept * lesion()[2:5], atol=0.01, rtol=1e-4
    )


def test_calcium_is_never_negative_whatever_the_network_says() -> None:
    network = build_network(SETTINGS, seed=0)
    generator = torch.Generator().manual_seed(3)
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    views = look_last(moved(), put_back(lesion()), seeing())[:, 2:5].flatten(0, 1)[None]
    state = torch.rand(1, 3, 64, 64, generator=generator)
    estimate = network(state, views, torch.tensor([700])).detach()
    calcium = to_hu(estimate) - views[:, 3 * CLEAN : 3 * LESION]
    assert float(calcium.min()) > -1e-3
    assert float(calcium.max()) > 10  # it does say something


def test_views_of_another_shape_are_refused() -> None:
    network = build_network(SETTINGS, seed=0)
    with pytest.raises(ProdmError, match="6 views of 3 slices"):
        network(torch.zeros(1, 3, 64, 64), torch.zeros(1, 15, 64, 64), torch.zeros(1))


def batch_of(lesion_hu: Tensor) -> Batch:
    views = look_last(moved(), put_back(lesion_hu), seeing())[:, 2:5].flatten(0, 1)[None]
    still = tissue()[2:5] + lesion()[2:5]
    calcium = (still >= 130)[None]
    return Batch(
        still=((still - LOW_HU) / (HIGH_HU - LOW_HU))[None],
        moving=((moved()[2:5] - LOW_HU) / (HIGH_HU - LOW_HU))[None],
        calcium=calcium,
        lesions=torch.from_numpy(lesion_neighbourhoods(calcium.numpy(), 4)),
        spacing_mm=torch.tensor([[3.0, 0.5, 0.5]]),
        background=((tissue()[2:5] - LOW_HU) / (HIGH_HU - LOW_HU))[None],
        views=views,
    )


def test_the_loss_is_least_for_the_truth_and_grows_with_the_distance() -> None:
    losses = []
    for x_px in (0.0, 1.0, 3.0):
        estimate = (tissue()[2:5] + lesion(x_px)[2:5] - LOW_HU)[None] / (HIGH_HU - LOW_HU)
        total, parts = finishing_loss(estimate, batch_of(lesion()), LOSS)
        losses.append(float(total))
        assert set(parts) == {"absolute", "calcium", "overlap"}
    assert losses[0] < 0.08  # soft masks are never quite right
    assert 5 * losses[0] < losses[1] < losses[2]


def test_a_lesion_that_is_not_there_costs_something() -> None:
    batch = batch_of(lesion(20.0))
    none = Batch(
        **{
            **vars(batch),
            "still": batch.background,
            "calcium": torch.zeros_like(batch.calcium),
            "lesions": torch.zeros_like(batch.lesions),
        }
    )
    believed = (tissue()[2:5] + lesion(20.0)[2:5] - LOW_HU)[None] / (HIGH_HU - LOW_HU)
    assert none.background is not None
    assert float(finishing_loss(none.background, none, LOSS)[0]) < 0.15
    assert float(finishing_loss(believed, none, LOSS)[0]) > 0.5


def test_the_overlap_of_two_squares_by_hand() -> None:
    """Of 16 and 16 pixels 8 are in both: 1 - (2 x 8 + 4) / (32 + 4)."""
    hu = torch.full((1, 1, 16, 16), -200.0)
    hu[..., 2:6, 2:6] = 800
    true = torch.zeros(1, 1, 16, 16, dtype=torch.bool)
    true[..., 2:6, 4:8] = True
    everywhere = torch.ones_like(true)
    assert float(overlap_loss(hu, true, everywhere)) == pytest.approx(1 - 20 / 36, abs=1e-4)
    only_left = torch.zeros_like(true)
    only_left[..., :4] = True  # what does not count is left out of both: 0 in common, 8 in all
    assert float(overlap_loss(hu, true, only_left)) == pytest.approx(1 - 4 / 12, abs=1e-4)


def test_what_a_network_sees_takes_the_place_of_the_lesion() -> None:
    seen = lesion(1.0)
    finished = finish(moved(), put_back(lesion()), seeing(), says(seen), torch.Generator())
    torch.testing.assert_close(finished, tissue() + seen, atol=0.01, rtol=1e-4)


def test_slices_beyond_the_lesion_and_its_neighbours_are_not_asked() -> None:
    everywhere = lesion() + 0 * lesion()
    everywhere[7] = 500.0
    finished = finish(moved(), put_back(lesion()), seeing(), says(everywhere), torch.Generator())
    torch.testing.assert_close(finished[6:], tissue()[6:])


def test_a_block_stays_as_it_is_where_a_network_sees_no_calcium() -> None:
    finished = finish(moved(), put_back(lesion()), seeing(), says(0 * lesion()), torch.Generator())
    assert torch.equal(finished, moved())


def test_nothing_is_asked_where_nothing_was_put_back_or_tissue_moves() -> None:
    def never(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        raise AssertionError("asked")

    at_rest = Phased(moved(), lesion(), None)
    assert torch.equal(finish(moved(), at_rest, seeing(), (never, 3), torch.Generator()), moved())
    along = seeing(tissue_rests=False)
    phased = put_back(lesion())
    explains_all = replace(phased, moving_hu=drift().apply(lesion()))
    finished = finish(moved(), explains_all, along, (never, 3), torch.Generator())
    torch.testing.assert_close(finished, phased.corrected_hu, atol=1e-3, rtol=1e-5)
    explains_nothing = replace(phased, moving_hu=drift().apply(lesion()).roll(20, 1))
    finished = finish(moved(), explains_nothing, along, (never, 3), torch.Generator())
    torch.testing.assert_close(finished, moved())


def test_a_last_look_without_a_placer_is_refused() -> None:
    blind = replace(seeing(), gaps=None)
    with pytest.raises(ProdmError, match="a last look needs a placer"):
        look_last(moved(), put_back(lesion()), blind)


def test_a_scan_in_which_nothing_moves_comes_back() -> None:
    def sees_tissue(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        return torch.cat([y, torch.zeros_like(y)], dim=1)

    phases = Phases(Separator(sees_tissue, 3, gaps=torch.zeros_like))
    blocks = (tissue() + lesion())[None].numpy()
    network = build_network(SETTINGS, seed=0)
    corrected = correct_consistently(blocks, (SETTINGS, network), phases, seed=0)
    np.testing.assert_array_equal(corrected, blocks)
