"""A focuser must be shown the truth of physics, start from it, and be asked for the right thing."""

import dataclasses

import pytest
import torch
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model import HIGH_HU, LOW_HU
from prodm.model.focusing import (
    MOST_DETAIL_HU,
    REFOCUSED,
    VIEWS,
    Focuser,
    detail,
    focus,
    focusing_loss,
    look_again,
    undone,
    without_grid,
)
from prodm.model.losses import Batch, LossSettings, lesion_neighbourhoods
from prodm.model.motions import LEFT_HU, FoundMotion, put_back
from prodm.model.network import NetworkSettings
from prodm.model.phasing import Separator, correct_by_phase
from prodm.model.search import SearchSettings
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

NETWORK = NetworkSettings(
    num_slices=3, channels=(8, 16), attention=(False, False), num_res_blocks=1,
    num_head_channels=8, norm_groups=8, fold=2,
)  # fmt: skip
LOSS = LossSettings(calcium="agatston", weight=0.3, tau_hu=25.0)
TIME = torch.arange(NUM_VIEWS) / NUM_VIEWS
THETA = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS)).float()


def lesion(x_px: float = 0.0, y_px: float = 0.0) -> Tensor:
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    one = 600 * torch.exp(-((x - 32 - x_px) ** 2 + (y - 32 - y_px) ** 2) / 8)
    return torch.stack([one / 3, one, one / 4])


def tissue() -> Tensor:
    """Smooth, bright on one side and dark on the other."""
    return (40 + torch.linspace(-60, 60, 64)).expand(3, 64, 64)


def drift(along_z: float = 0.0) -> FoundMotion:
    return FoundMotion(TIME * (9 * THETA.cos() + 4 * THETA.sin()), 0.0, along_z * TIME)


def batch(calcium_hu: Tensor, views: Tensor) -> Batch:
    """One window whose truth is the middle slice of a lesion in tissue."""
    unit = HIGH_HU - LOW_HU
    background = (tissue()[1] - LOW_HU) / unit
    mask = (tissue()[1] + calcium_hu >= 130) & (calcium_hu > 0)
    still = background + calcium_hu / unit
    near = torch.from_numpy(lesion_neighbourhoods(mask[None, None].numpy(), 5))
    return Batch(
        still=still[None, None], moving=still[None, None], calcium=mask[None, None], lesions=near,
        spacing_mm=torch.tensor([[3.0, 0.5, 0.5]]), background=background[None, None],
        views=views.flatten(0, 1)[None],
    )  # fmt: skip


def views_of(motion: FoundMotion) -> Tensor:
    moving = motion.apply(lesion())
    return look_again(tissue() + moving, moving, torch.full_like(moving, 0.1), motion)


def test_an_untrained_focuser_leaves_what_was_refocused() -> None:
    views = views_of(drift())
    network = Focuser(NETWORK).eval()
    still = focus(views, lambda y, _: network(y, y, torch.zeros(len(y))), 3)
    share = float(torch.sigmoid(torch.tensor(2.0)))
    torch.testing.assert_close(still, share * views[REFOCUSED], atol=1e-3, rtol=1e-4)


def test_no_grid_of_dots_is_left() -> None:
    """A pattern of two pixels goes, a constant stays, and so does the sum of what is inside."""
    y, x = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    for pattern in (y % 2, x % 2, (x + y) % 2, (x % 2) * (y % 2)):
        smooth = without_grid(5.0 * pattern[None, None].float())[0, 0, 2:6, 2:6]
        torch.testing.assert_close(smooth, smooth.mean().expand(4, 4))
    torch.testing.assert_close(
        without_grid(torch.full((1, 1, 4, 4), 3.0)), torch.full((1, 1, 4, 4), 3.0)
    )
    spot = torch.zeros(1, 1, 8, 8)
    spot[..., 4, 4] = 16.0
    assert without_grid(spot)[0, 0, 3:6, 3:6].tolist() == [[1, 2, 1], [2, 4, 2], [1, 2, 1]]


def test_the_image_undone_shows_calcium_sharp_and_tissue_smeared() -> None:
    motion = drift()
    seen = tissue() + motion.apply(lesion())
    back = undone(seen, motion)
    middle = (slice(None), slice(16, 48), slice(16, 48))
    rest = back - lesion()
    assert float((rest - rest.mean())[middle].abs().max()) < 80  # tissue, moved the other way
    peak = float(back[1].max())
    assert peak > 0.9 * float((tissue() + lesion()).max())
    assert peak > 1.5 * float(seen.max())


def test_a_small_lesion_stands_out_of_the_detail_and_drowns_in_the_image() -> None:
    """Beside lung and bone, whose edges fall apart into streaks when the motion is undone."""
    motion = drift()
    spot = lesion() / 3  # 200 HU
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    lung, bone = (x - 6).hypot(y - 20) < 10, (x - 56).hypot(y - 50) < 8
    seen = 700.0 * bone - 800.0 * lung + motion.apply(spot)
    ring = torch.zeros(3, 64, 64, dtype=torch.bool)
    ring[:, 18:46, 18:46] = True
    ring[:, 24:41, 24:41] = False

    def contrast(image: Tensor) -> float:
        """Of the lesion against what lies around it."""
        level = image[ring].median()
        return float((image[1, 30:35, 30:35].max() - level) / (image[ring] - level).abs().max())

    assert contrast(undone(detail(seen), motion)) > 1.1
    assert contrast(undone(seen, motion)) < 0.6


def test_detail_is_fine_and_no_edge_counts_more_than_a_lesion() -> None:
    slope = torch.arange(64.0).expand(1, 64, 64)
    assert float(detail(slope)[..., 4:-4, 4:-4].abs().max()) == pytest.approx(0, abs=1e-4)
    edge = torch.where(slope < 32, -900.0, 1200.0)
    assert float(detail(edge).abs().max()) == MOST_DETAIL_HU
    assert float(detail(edge)[..., :27].abs().max()) == 0  # seven pixels see no farther
    spot = torch.zeros(1, 64, 64)
    spot[0, 32, 32] = 49.0
    assert detail(spot)[0, 32, 32] == pytest.approx(48)  # less the mean over seven by seven


def test_without_motion_the_image_is_what_is_seen() -> None:
    rest = FoundMotion(torch.zeros(NUM_VIEWS), 0.0)
    torch.testing.assert_close(undone(tissue(), rest), tissue(), atol=1e-2, rtol=0)


def test_views_are_in_their_order() -> None:
    motion = drift(0.4)
    moving = motion.apply(lesion())
    odds = torch.rand(3, 64, 64)
    views = dict(zip(VIEWS, look_again(tissue() + moving, moving, odds, motion), strict=True))
    torch.testing.assert_close(views["seen"], tissue() + moving)
    torch.testing.assert_close(views["moving"], moving)
    torch.testing.assert_close(views["detail"], undone(detail(tissue() + moving), motion))
    torch.testing.assert_close(views["odds"], odds)
    assert float((views["refocused"] - lesion()).abs().max()) < 60
    assert float((moving - lesion()).abs().max()) > 200


def test_windows_hold_the_slices_around_each() -> None:
    views = torch.arange(5.0 * 4).reshape(5, 4, 1, 1).expand(5, 4, 8, 8)
    shown: list[Tensor] = []

    def predict(windows: Tensor, _: torch.Generator) -> Tensor:
        shown.append(windows)
        return torch.zeros(len(windows), 1, 8, 8)

    focus(views, predict, 3)
    assert shown[0].shape == (4, 15, 8, 8)
    assert shown[0][0, :, 0, 0].reshape(5, 3)[1].tolist() == [4, 4, 5]  # second view, first slice
    assert shown[0][2, :, 0, 0].reshape(5, 3)[4].tolist() == [17, 18, 19]


def test_a_slice_that_is_not_wanted_is_not_looked_at() -> None:
    views = torch.arange(5.0 * 4).reshape(5, 4, 1, 1).expand(5, 4, 8, 8)

    def middles(windows: Tensor, _: torch.Generator) -> Tensor:
        assert len(windows) == 2
        return windows[:, 1, None]

    seen = focus(views, middles, 3, torch.tensor([False, True, False, True]))
    assert seen[:, 0, 0].tolist() == [0, 1, 0, 3]
    assert not focus(views, middles, 3, torch.zeros(4, dtype=torch.bool)).any()


def test_the_truth_costs_nothing_and_each_error_costs_its_part() -> None:
    truth = lesion()[1][None, None]
    case = batch(lesion()[1], views_of(drift()))
    loss, parts = focusing_loss(truth, case, LOSS)
    assert float(loss) == pytest.approx(0, abs=1e-6)
    assert set(parts) == {"absolute", "calcium"}
    fainter, fainter_parts = focusing_loss(0.5 * truth, case, LOSS)
    assert fainter_parts["calcium"] > 0.1
    assert fainter_parts["absolute"] > 0.3
    assert float(fainter) == pytest.approx(
        float(fainter_parts["absolute"] + LOSS.weight * fainter_parts["calcium"]), abs=1e-5
    )


def test_invented_calcium_counts_wherever_it_is() -> None:
    case = batch(lesion()[1], views_of(drift()))
    invented = lesion()[1].clone()
    invented[2:6, 2:6] = 200
    _, parts = focusing_loss(invented[None, None], case, LOSS)
    assert parts["absolute"] > 0.1


def test_a_batch_without_findings_is_refused() -> None:
    case = dataclasses.replace(batch(lesion()[1], views_of(drift())), views=None)
    with pytest.raises(ProdmError, match="motions that were found"):
        focusing_loss(torch.zeros(1, 1, 64, 64), case, LOSS)


def test_wrong_windows_are_refused() -> None:
    network = Focuser(NETWORK)
    for shape in ((1, 5, 64, 64), (1, 15, 66, 64)):
        with pytest.raises(ProdmError, match="5 views of 3 slices"):
            network(torch.zeros(shape), torch.zeros(shape), torch.zeros(1))


def test_the_second_look_replaces_the_lesion() -> None:
    """What a focuser answers is put in the place of what moves."""
    motion = drift()
    seen = tissue() + motion.apply(lesion())

    def predict(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        refocused = y[:, 3 * REFOCUSED + 1]
        sharp = torch.where(refocused > 100, refocused + 111, torch.zeros_like(refocused))
        return sharp[:, None]

    separator = Separator(lambda *_: torch.zeros(0), 3, focuser=(predict, 3))
    guess = 3 + 200 * lesion() / 600
    result = correct_by_phase(
        seen, tissue(), SearchSettings(start_rad=0.0), torch.Generator().manual_seed(0),
        guess, separator,
    )  # fmt: skip
    added = result.corrected_hu - tissue()
    assert float(added.max()) > 640  # 111 more than there was, less what is grain
    assert float(added[:, :20].abs().max()) < LEFT_HU
    centre = torch.stack([(added[1] * axis).sum() for axis in axes()]) / added[1].sum()
    assert float((centre - 32).abs().max()) < 1.0
    assert result.explained > 0.9


def test_what_the_lesion_does_not_explain_is_left_but_where_it_passes() -> None:
    """Tissue that was taken to move stays; what a wrong motion leaves over goes, but for grain."""
    motion, wrong = drift(), FoundMotion(1.2 * drift().shift_px, 0.0)
    other = lesion(-24.0, -24.0)  # taken to move too, and no calcium
    grain = 10 * torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(0))
    moving = motion.apply(lesion()) + other + grain
    block = tissue() + moving
    right = put_back(block, moving, lesion(), motion)
    torch.testing.assert_close(right, tissue() + other + grain + lesion(), atol=40.0, rtol=0)
    assert float((right - tissue() - other - grain - lesion()).std()) < 1.0
    left = put_back(block, moving, lesion(), wrong) - tissue() - lesion()
    assert float((left - other)[:, 16:].abs().max()) < LEFT_HU + 35
    kept = float(left[1, 4:12, 4:12].max())
    assert kept == pytest.approx(float((other + grain)[1, 4:12, 4:12].max()), abs=20)


def axes() -> tuple[Tensor, Tensor]:
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    return y, x
