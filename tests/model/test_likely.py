"""Motions that are likely by their shape must be those that the simulator draws."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from prodm.model.families import FAMILIES, draw_motions
from prodm.model.likely import (
    NUM_WEDGES,
    _direction,
    as_drawn,
    centres_rad,
    likely_motions,
    shape_of,
    shapes,
)
from prodm.model.motions import FoundMotion
from prodm.model.placing import place_of, translation
from prodm.model.reading import true_path
from prodm.motion.profiles import MAIN_RATIO, OTHER_RATIO
from prodm.physics.fitting import NUM_VIEWS

NUM_TWINS = 20_000
ERROR_PX = 0.3


def drawn(count: int, family: str | None, seed: int) -> list[FoundMotion]:
    motions = draw_motions(count, 0.0, torch.Generator().manual_seed(seed))
    shift = motions.shift(motions.displacement())
    return [
        FoundMotion(one, 0.0)
        for one, kind in zip(shift, motions.family.tolist(), strict=True)
        if family in (None, FAMILIES[kind])
    ]


@pytest.mark.parametrize(("family", "within_px"), [("translation", 0.5), ("jitter", 1.0)])
def test_a_shape_that_is_known_well_tells_the_place(family: str, within_px: float) -> None:
    errors = []
    for true in drawn(60, family, seed=4):
        likely = likely_motions(true, 0.0, 0.05)
        weight = likely.evidence.softmax(dim=0)
        errors.append(float((weight @ likely.place - place_of(true)).norm()))
    assert torch.tensor(errors).median() < within_px


def test_likely_motions_have_the_shape() -> None:
    for true in drawn(12, None, seed=5):
        likely = likely_motions(true, 0.0, 0.1)
        weight = likely.evidence.softmax(dim=0)
        away = torch.stack([shape_of(FoundMotion(s, 0.0)) for s in likely.shift_px[weight > 1e-3]])
        off_px = (away - shape_of(true)).square().mean(dim=1).sqrt()
        assert float(weight[weight > 1e-3] @ off_px) < 0.25


def test_places_are_those_of_a_crowd_of_draws() -> None:
    """A slow twin: 20,000 motions as the simulator draws them, each by how close its shape is."""
    crowd = draw_motions(NUM_TWINS, 0.0, torch.Generator().manual_seed(6))
    displacement = crowd.displacement()
    places = translation(true_path(displacement, crowd.start_rad)[:, 0])
    at_wedges = (centres_rad() / math.pi * NUM_VIEWS).round().long()
    crowd_shapes = crowd.shift(displacement)[:, at_wedges] @ shapes()
    for true in drawn(30, "translation", seed=7)[:5] + drawn(30, "oscillation", seed=7)[:5]:
        away = (crowd_shapes - shape_of(true)).square().sum(dim=1)
        weight = torch.softmax(-away / (2 * ERROR_PX**2), dim=0)
        likely = likely_motions(true, 0.0, ERROR_PX)
        share = likely.evidence.softmax(dim=0)
        first, second = float(weight @ places.norm(dim=1)), float(share @ likely.place.norm(dim=1))
        assert second == pytest.approx(first, rel=0.1, abs=0.1)


def test_an_oscillation_may_rest_anywhere_on_its_circle() -> None:
    """Where it truly rests is likely, wherever that is: no part of the circle is left out."""
    for true in drawn(150, "oscillation", seed=10):
        likely = likely_motions(true, 0.0, 0.1)
        away_px = (likely.place - place_of(true)).norm(dim=1)
        assert float(likely.evidence.softmax(dim=0)[away_px < 1].sum()) > 0.005


def test_directions_are_those_that_the_simulator_draws() -> None:
    """The density of ratios against a histogram of draws."""
    rng = np.random.default_rng(0)
    larger, lesser = rng.uniform(*MAIN_RATIO, 400_000), rng.uniform(*OTHER_RATIO, 400_000)
    edges = np.linspace(0.15, 0.7, 12)
    drawn_share, _ = np.histogram(np.arctan2(lesser, larger), np.arctan(edges))
    turn = torch.from_numpy((np.arctan(edges)[1:] + np.arctan(edges)[:-1]) / 2)
    density = _direction(torch.stack([turn.cos(), turn.sin()], dim=1)).exp()
    share = (density * torch.from_numpy(np.diff(np.arctan(edges)))).numpy()
    np.testing.assert_allclose(share / share.sum(), drawn_share / drawn_share.sum(), atol=0.01)


def test_what_was_found_becomes_a_motion_of_the_simulator() -> None:
    """What was added to its shape is gone, most of it, and rest along z stays."""
    generator = torch.Generator().manual_seed(0)
    for true in drawn(20, "translation", seed=9):
        added = 0.3 * torch.randn(NUM_WEDGES, generator=generator).repeat_interleave(6)
        wrong = replace(true, shift_px=true.shift_px + added, slice_shift=torch.ones(NUM_VIEWS))
        mended = as_drawn(wrong, 0.0)
        before, after = (float((shape_of(one) - shape_of(true)).norm()) for one in (wrong, mended))
        assert after < 0.8 * before
        assert mended.slice_shift is not None
        assert mended.slice_shift.tolist() == [1.0] * NUM_VIEWS


def test_another_start_moves_the_jump() -> None:
    """A drift of a scan that starts at 60 degrees is known by its jump there."""
    start = math.pi / 3
    motions = draw_motions(40, start, torch.Generator().manual_seed(8))
    shift = motions.shift(motions.displacement())
    better = []
    for n in torch.nonzero(motions.family == 0).flatten().tolist():
        motion = FoundMotion(shift[n], start)
        right, wrong = (
            float(likely_motions(motion, a, 0.1).evidence.logsumexp(dim=0)) for a in (start, 0.0)
        )
        better.append(right > wrong + 5)
    assert len(better) > 4
    assert all(better)
