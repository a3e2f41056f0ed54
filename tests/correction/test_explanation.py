"""A right correction is explained by the motion that was; a wrong one by none."""

from itertools import pairwise, product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from prodm.correction.explanation import explain
from prodm.errors import ProdmError
from prodm.physics import fitting, phase
from prodm.physics.fitting import cross_plane, fit_motion, smoothest_paths

Floats = NDArray[np.float32]
SHAPE = (6, 64, 64)
TIMES = np.arange(60) / 60


def lesions(*places: tuple[int, int, int], hu: float = 400.0) -> Floats:
    """Small plaques over nothing."""
    image = np.zeros(SHAPE, np.float32)
    for z, y, x in places:
        image[z : z + 2, y : y + 3, x : x + 4] = hu
    return np.asarray(ndimage.gaussian_filter(image, (0, 0.9, 0.9)))


def tissue(seed: int = 0) -> Floats:
    """Soft tissue with grain and a patch of fat."""
    grain = ndimage.gaussian_filter(np.random.default_rng(seed).normal(0, 1, SHAPE), (0, 0.7, 0.7))
    image = 45 + 12 * grain / grain.std()
    image[:, 40:, :20] -= 130
    return np.asarray(image, np.float32)


def shift_px(kind: str) -> Floats:
    """Return s(theta) of three motions, at the views."""
    angle = np.pi * TIMES
    path = {
        "drift": np.stack([9 * TIMES, 3 * TIMES]),
        "swing": np.stack([4 * np.cos(2 * angle), 3 * np.sin(2 * angle)]),
        "translation": np.stack([np.full(60, 5.0), np.full(60, -3.0)]),
    }[kind]
    return np.asarray(path[0] * np.cos(angle) + path[1] * np.sin(angle), np.float32)


STILL = lesions((1, 24, 30), (3, 36, 40))


def seen(kind: str, start_rad: float = 0.0) -> Floats:
    moved: Floats = phase.apply(STILL, shift_px(kind), start_rad=start_rad)
    return moved


@pytest.mark.parametrize("kind", ["drift", "swing", "translation"])
@pytest.mark.parametrize("start_rad", [0.0, 1.3])
def test_the_motion_that_was_explains_the_truth(kind: str, start_rad: float) -> None:
    found = explain(tissue() + seen(kind, start_rad), tissue() + STILL, 0.5)
    assert found is not None
    assert found.residual < 0.08


@pytest.mark.parametrize("kind", ["drift", "swing"])
def test_the_curve_is_the_motion_in_mm(kind: str) -> None:
    found = explain(tissue() + seen(kind), tissue() + STILL, 0.5)
    assert found is not None
    angles_deg, shift_mm = np.array(found.angles_deg), np.array(found.shift_mm)
    turned = angles_deg >= 180  # the same line from the other side
    true_mm = 0.5 * np.interp(angles_deg % 180, 180 * TIMES, shift_px(kind))
    difference_mm = np.where(turned, -shift_mm, shift_mm) - true_mm
    assert np.median(np.abs(difference_mm)) < 0.15
    assert found.largest_mm == pytest.approx(np.abs(true_mm).max(), abs=0.5)


def test_the_residual_is_the_energy_that_the_motion_leaves_over() -> None:
    before, after = seen("drift"), lesions((1, 24, 30), (3, 36, 40), (3, 24, 30))
    motion = fit_motion(before, after)
    residual, start_rad, shift = motion.residual, motion.start_rad, motion.shift_px
    before, after = (np.pad(image, ((0, 0), (40, 40), (40, 40))) for image in (before, after))
    again = phase.apply(after, shift.astype(np.float32), start_rad=start_rad)

    def energy(image: Floats) -> float:
        return float((ndimage.gaussian_filter(image, (0, 1, 1)) ** 2).sum())

    left = energy(before - again) / (energy(before) + energy(after))
    assert left > 0.1
    assert residual == pytest.approx(left, abs=0.01)
    both = energy(before) + energy(after)
    assert cross_plane(before, after, 0.0).energy == pytest.approx(both, rel=0.01)
    assert cross_plane(before, after, 0.1 * both).energy == pytest.approx(0.9 * both, rel=0.01)


def test_paths_are_good_before_they_are_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MAX_STEPS", 0)
    motion = fit_motion(seen("drift", 1.3), STILL)
    residual, start_rad = motion.residual, motion.start_rad
    assert residual < 0.1
    assert abs(start_rad - 1.3) < 0.3


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_no_motion_makes_calcium_brighter(factor: float) -> None:
    motion = fit_motion(factor * STILL, STILL)
    residual, shift = motion.residual, motion.shift_px
    assert residual == pytest.approx((1 - factor) ** 2 / (1 + factor**2), abs=1e-3)
    assert np.abs(shift).max() < 0.2


def test_deleted_and_invented_calcium_are_not_explained() -> None:
    still = tissue() + STILL
    for before, after in ((still, tissue()), (tissue(), still)):
        found = explain(before, after, 0.5)
        assert found is not None
        assert found.residual > 0.9
        assert found.largest_mm == 0 or after is still


def test_another_lesion_is_not_explained() -> None:
    other = lesions((0, 20, 20), (2, 30, 44), (2, 44, 30), hu=900.0)
    found = explain(tissue() + seen("drift"), tissue() + other, 0.5)
    assert found is not None
    assert found.residual > 0.5


def test_where_no_calcium_changed_there_is_nothing_to_explain() -> None:
    still = tissue() + STILL
    assert explain(still, still, 0.5) is None
    assert explain(still, tissue(seed=1) + STILL, 0.5) is None
    assert explain(tissue(), tissue(seed=1), 0.5) is None


def test_grain_that_a_correction_changes_does_not_count() -> None:
    kept = explain(tissue() + seen("swing"), tissue() + STILL, 0.5)
    changed = explain(tissue() + seen("swing"), tissue(seed=1) + STILL, 0.5)
    assert kept is not None
    assert changed is not None
    assert changed.residual == pytest.approx(kept.residual, abs=0.05)


def test_bone_that_stays_is_left_out() -> None:
    bone = np.zeros(SHAPE, np.float32)
    bone[:, :8, :] = 600
    found = explain(bone + tissue() + seen("swing"), bone + tissue() + STILL, 0.5)
    assert found is not None
    assert found.residual < 0.08


def test_whole_numbers_and_odd_shapes_are_fine_and_answers_repeat() -> None:
    before = np.rint(tissue() + seen("swing")).astype(np.int16)[:5, 3:, 6:]
    after = np.rint(tissue() + STILL).astype(np.int16)[:5, 3:, 6:]
    found = explain(before, after, 0.5)
    assert found == explain(before, after, 0.5)
    assert found is not None
    assert found.residual < 0.1
    content = found.to_json()
    assert len(content["angles_deg"]) == len(content["shift_mm"]) == 60


def test_the_best_path_is_the_best_of_all() -> None:
    tables = np.random.default_rng(3).normal(0, 1, (2, 5, 4))
    totals, paths = smoothest_paths(tables, 0.3)
    for table, total, path in zip(tables, totals, paths, strict=True):
        worth = {
            states: sum(row[s] for row, s in zip(table, states, strict=True))
            - 0.3 * sum((a - b) ** 2 for a, b in pairwise(states))
            for states in product(range(4), repeat=5)
        }
        best = max(worth, key=lambda states: worth[states])
        assert tuple(path) == best
        assert total == pytest.approx(worth[best])


def test_blocks_of_two_shapes_are_refused() -> None:
    with pytest.raises(ProdmError, match=r"blocks \[Z, Y, X\] of one shape"):
        explain(STILL, STILL[1:], 0.5)
