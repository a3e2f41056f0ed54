"""The place of a lesion: what motions make likely, what images show, and both together."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from prodm.model.families import JITTER, draw_motions
from prodm.model.motions import FoundMotion
from prodm.model.placing import FARTHEST_PX, centred, log_density, odds_evidence, place_of, settle
from prodm.model.reading import angles_rad
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

TIME = torch.arange(NUM_VIEWS) / NUM_VIEWS
THETA = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS)).float()
NOTHING_KNOWN = torch.full((3, 64, 64), 0.01)


def lesion(x_px: float = 0.0, y_px: float = 0.0) -> Tensor:
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    one = 600 * torch.exp(-((x - 32 - x_px) ** 2 + (y - 32 - y_px) ** 2) / 8)
    return torch.stack([one / 3, one, one / 4])


def drift() -> FoundMotion:
    return FoundMotion(TIME * (10 * THETA.cos() + 4 * THETA.sin()), 0.0)


def oscillation(x_px: float, y_px: float, phase_rad: float) -> FoundMotion:
    wave = torch.sin(2 * math.pi * TIME + phase_rad)
    return FoundMotion(wave * (x_px * THETA.cos() + y_px * THETA.sin()), 0.0)


def away(found: FoundMotion, true: FoundMotion) -> float:
    """How far from its place a lesion is put."""
    angles = angles_rad()
    normals = torch.stack([angles.cos(), angles.sin()])
    difference = found.shift_at(angles) - true.shift_at(angles)
    return float((difference @ torch.linalg.pinv(normals)).norm())


def settled_by(motion: FoundMotion, seen: Tensor, odds: Tensor) -> FoundMotion:
    return settle(motion, odds_evidence(motion.undo(seen), odds))


@pytest.mark.parametrize("wrong", [(3.0, -4.0), (-6.0, 0.0)])
def test_a_drift_starts_at_rest(wrong: tuple[float, float]) -> None:
    """Its shape alone tells the place, whatever place it is first found at."""
    seen = drift().apply(lesion())
    settled = settled_by(drift().translated(*wrong), seen, NOTHING_KNOWN)
    assert away(settled, drift()) < 1.0


def entropy(motion: FoundMotion, start_rad: float | None) -> float:
    density = log_density(motion, start_rad).flatten().softmax(dim=0)
    return float(-(density * density.log()).sum())


def test_a_known_start_leaves_fewer_places() -> None:
    """Harmonics of jitter share a phase at the start of the scan, wherever that is."""
    motions = draw_motions(60, 0.0, torch.Generator().manual_seed(3))
    shift = motions.shift(motions.displacement())
    jitter = [FoundMotion(shift[n], 0.0) for n in torch.nonzero(motions.family == JITTER).flatten()]
    for motion in jitter[:6]:
        assert entropy(motion, 0.0) < entropy(motion, None) - 0.05
    row, column = divmod(int(log_density(drift(), 0.0).argmax()), 2 * FARTHEST_PX + 1)
    assert (row, column) == pytest.approx((FARTHEST_PX, FARTHEST_PX), abs=1)


def test_the_start_tells_nothing_of_an_oscillation() -> None:
    """Whose period is that of the scan, so that it goes on as if it had started anywhere."""
    motion = oscillation(9.0, 2.0, 0.3)
    assert entropy(motion, 0.0) == pytest.approx(entropy(motion, None), abs=0.02)


def test_oscillations_of_one_shape_rest_on_a_circle() -> None:
    """Turning the direction by a, and the phase as much, moves the place and changes no image.

    So no search can tell these motions apart, and only the image can tell where the lesion rests.
    """
    angles = np.linspace(0, 2 * np.pi, 9)[:-1]
    motions = [oscillation(10 * np.cos(a), 10 * np.sin(a), a) for a in angles]
    normals = torch.stack([THETA.cos(), THETA.sin()])
    fit = torch.linalg.pinv(normals)
    places = [motion.shift_px @ fit for motion in motions]
    shapes = [
        motion.shift_px - place @ normals for motion, place in zip(motions, places, strict=True)
    ]
    for shape in shapes[1:]:
        torch.testing.assert_close(shape, shapes[0], atol=0.05, rtol=0)
    assert [float(place.norm()) for place in places] == pytest.approx([5.0] * 8, rel=0.02)
    apart = [float((one - other).norm()) for one in places for other in places]
    assert max(apart) == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("turned_rad", [0.0, math.pi / 2, math.pi])
def test_the_image_tells_where_an_oscillation_rests(turned_rad: float) -> None:
    """Of all motions of one shape, the one is taken that puts the lesion where calcium may be."""
    direction = math.atan2(2.0, 9.0)
    along = 9.2 * math.cos(direction + turned_rad), 9.2 * math.sin(direction + turned_rad)
    true = oscillation(*along, 0.3 + turned_rad)
    odds = 0.001 + 0.3 * lesion() / 600  # not at all sure
    first_found = oscillation(9.0, 2.0, 0.3)
    assert away(settled_by(first_found, true.apply(lesion()), odds), true) < 2.0


def test_the_motion_holds_against_a_weak_hint_far_away() -> None:
    seen = drift().apply(lesion())
    hint = 0.01 + 0.01 * lesion(-9.0, 9.0) / 600
    assert away(settled_by(drift().translated(2.0, 2.0), seen, hint), drift()) < 1.0


def test_what_shows_stays_as_it_is() -> None:
    settled = settled_by(drift().translated(2.0, 1.0), drift().apply(lesion()), NOTHING_KNOWN)
    added = settled.shift_px - drift().shift_px
    normals = torch.stack([THETA.cos(), THETA.sin()])
    rest = added - (added @ torch.linalg.pinv(normals)) @ normals
    assert float(rest.abs().max()) < 1e-3


def test_centred_a_lesion_is_where_it_was_seen_on_average() -> None:
    moves_along_z = replace(drift(), slice_shift=0.6 * TIME)
    middle = centred(moves_along_z)
    assert place_of(moves_along_z).norm() > 2
    assert place_of(middle).tolist() == pytest.approx([0.0, 0.0], abs=0.05)
    assert middle.slice_shift is not None
    assert float(middle.slice_shift.mean()) == pytest.approx(0.0, abs=1e-6)
    y, x = torch.meshgrid(torch.arange(64) - 32.0, torch.arange(64) - 32.0, indexing="ij")
    away = []
    for motion in (moves_along_z, middle):
        bright = motion.apply(lesion())[1].clamp(min=0) ** 2  # streaks go far, and count little
        away.append([float((bright * axis).sum() / bright.sum()) for axis in (x, y)])
    assert math.hypot(*away[1]) < 0.7 * math.hypot(*away[0])
