"""On phantoms, an oracle in place of the network gives the true score: the way costs nothing."""

from typing import Any

import numpy as np
import pytest

from prodm.agatston import score
from prodm.anatomy.phantom import Phantom, PhantomSettings, make_phantom
from prodm.correction import correct
from prodm.correction.candidates import find_candidates
from prodm.motion.profiles import draw
from prodm.pairs.simulate import simulate
from prodm.volume import Volume


def moved_phantom(seed: int, settings: PhantomSettings, profile: str) -> tuple[Phantom, Volume]:
    phantom = make_phantom(seed, settings)
    rng = np.random.default_rng(seed)
    path = draw(profile, rng, pixel_spacing_mm=phantom.still.spacing_mm[1], num_angles=180)
    moving = simulate(phantom.still, phantom.calcium, path, rng=rng, engine="phase").moving
    return phantom, moving.with_hu(np.rint(moving.hu).astype(np.int16))


def still_where_nothing_is_seen(phantom: Phantom, moving: Volume, oracle: Any) -> tuple[float, Any]:  # noqa: ANN401
    """Return the true score under the blocks, the rest being as scanned, and the result."""
    result = correct(moving, phantom.heart, oracle)
    hu = moving.hu.copy()
    for roi in result.rois:
        hu[roi.window] = phantom.still.hu[roi.window]
    return score(moving.with_hu(hu), phantom.heart).agatston, result


@pytest.fixture
def made(oracle: Any) -> Any:  # noqa: ANN401
    """Return a function that corrects a moved phantom with an oracle."""

    def run(seed: int, settings: PhantomSettings, profile: str) -> tuple[float, float, float]:
        from types import SimpleNamespace

        phantom, moving = moved_phantom(seed, settings, profile)
        known = SimpleNamespace(still=phantom.still, moving=moving, heart=phantom.heart)
        true, result = still_where_nothing_is_seen(phantom, moving, oracle(moved=known))
        assert find_candidates(moving, phantom.heart).count > 0
        return true, result.after.agatston, result.before.agatston

    return run


SMALL = PhantomSettings(num_pixels=200, gated_fraction=0.0, coverage_mm=(60.0, 70.0))


def test_a_small_phantom_costs_less_than_a_hundredth(made: Any) -> None:  # noqa: ANN401
    true, after, before = made(4, SMALL, "oscillation-x-medium")
    assert abs(before - true) > 0.02 * true
    assert after == pytest.approx(true, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "profile"),
    [
        (3, "translation-x-large"),
        (4, "jitter-large"),
        (5, "piecewise-y-medium"),
        (7, "oscillation-y-small"),
    ],
)
def test_whole_phantoms_cost_less_than_a_hundredth(made: Any, seed: int, profile: str) -> None:  # noqa: ANN401
    true, after, _ = made(seed, PhantomSettings(), profile)
    assert after == pytest.approx(true, rel=0.01)
