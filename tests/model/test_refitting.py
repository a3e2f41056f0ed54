"""A motion that is a little wrong must be found better from lesions that were seen in focus."""

import pytest
import torch
from torch import Tensor

from prodm.model import refitting
from prodm.model.motions import FoundMotion
from prodm.model.placing import place_of
from prodm.model.reading import angles_rad, without_translation
from prodm.model.refitting import refit
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

SIZE = 64


def lesion(x_px: float, y_px: float) -> Tensor:
    y, x = torch.meshgrid(torch.arange(SIZE) - y_px, torch.arange(SIZE) - x_px, indexing="ij")
    one = 500 * torch.exp(-(x**2 / 6 + y**2 / 10))
    return torch.stack([0 * one, one / 2, one, 0 * one])


def tissue(seed: int) -> Tensor:
    grain = torch.randn(4, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))
    column = torch.linspace(-100, 45, SIZE).expand(4, SIZE, SIZE)
    return column + 12 * torch.nn.functional.avg_pool2d(grain, 3, stride=1, padding=1)


def view_angles(start_rad: float) -> Tensor:
    return torch.from_numpy(phase.view_angles_rad(NUM_VIEWS, start_rad=start_rad)).float()


def drift(start_rad: float = 0.0) -> FoundMotion:
    time, theta = torch.arange(NUM_VIEWS) / NUM_VIEWS, view_angles(start_rad)
    return FoundMotion(time * (9 * theta.cos() - 5 * theta.sin()), start_rad)


def slightly_wrong(motion: FoundMotion) -> FoundMotion:
    """Off by 0.4 pixels, as a wave of three periods, which no translation makes up."""
    wave = 0.4 * 2**0.5 * torch.sin(3 * (view_angles(motion.start_rad) - motion.start_rad))
    return FoundMotion(motion.shift_px + wave, motion.start_rad, motion.slice_shift)


def error_px(motion: FoundMotion, true: FoundMotion) -> float:
    away = without_translation(motion.shift_at(angles_rad()) - true.shift_at(angles_rad()))
    return float(away.square().mean().sqrt())


LESIONS = (lesion(30, 33), lesion(38, 25), lesion(24, 40))


def seen(true: FoundMotion) -> list[tuple[Tensor, Tensor]]:
    return [(tissue(n) + true.apply(one), one) for n, one in enumerate(LESIONS)]


@pytest.mark.parametrize("start_rad", [0.0, 0.7])
def test_a_motion_comes_nearer_to_the_truth(start_rad: float) -> None:
    true = drift(start_rad)
    found = slightly_wrong(true)
    assert error_px(found, true) > 0.3
    assert error_px(refit(found, seen(true)), true) < 0.5 * error_px(found, true)


def test_a_lesion_that_suits_a_wrong_motion_does_not_hold_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each was put in focus by the motion that is to be fitted; that they may change helps."""
    found = slightly_wrong(drift())
    grown = [
        (image, found.refocus(drift().apply(one)))
        for (image, _), one in zip(seen(drift()), LESIONS, strict=True)
    ]
    free_px = error_px(refit(found, grown), drift())
    monkeypatch.setattr(refitting, "CHANGE_PRICE_HU", 1e9)
    held_px = error_px(refit(found, grown), drift())
    assert free_px < 0.9 * held_px < 0.9 * error_px(found, drift())


def test_the_true_motion_stays() -> None:
    assert error_px(refit(drift(), seen(drift())), drift()) < 0.1


def test_the_place_stays() -> None:
    found = slightly_wrong(drift())
    again = refit(found, seen(drift()))
    torch.testing.assert_close(place_of(again), place_of(found), atol=0.02, rtol=0)
    assert again.slice_shift is found.slice_shift


def test_one_block_tells_a_motion_too() -> None:
    found = slightly_wrong(drift())
    again = refit(found, seen(drift())[:1])
    assert error_px(again, drift()) < 0.7 * error_px(found, drift())


def test_the_lesions_that_tell_most_are_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A faint lesion in the wrong place has no say beside two bright ones."""
    monkeypatch.setattr(refitting, "MOST_BLOCKS", 2)
    misleading = (tissue(7), 0.2 * lesion(32, 32))
    first, second, _ = seen(drift())
    found = slightly_wrong(drift())
    with_it = refit(found, [misleading, first, second])
    torch.testing.assert_close(with_it.shift_px, refit(found, [first, second]).shift_px)


@pytest.mark.parametrize("start_rad", [0.0, 1.1])
def test_no_change_is_a_translation_or_made_up_of_others(start_rad: float) -> None:
    shapes, theta = refitting._shapes(start_rad), view_angles(start_rad)
    products = shapes @ shapes.T / NUM_VIEWS
    torch.testing.assert_close(products, torch.eye(len(shapes)), atol=1e-4, rtol=0)
    translations = torch.stack([theta.cos(), theta.sin()])
    assert float((shapes @ translations.T / NUM_VIEWS).abs().max()) < 1e-4
