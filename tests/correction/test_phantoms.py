"""On phantoms, an oracle in place of the network gives the true score: the way costs nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prodm.agatston import score
from prodm.anatomy.phantom import PhantomSettings, make_phantom
from prodm.anatomy.plaques import PlaqueSettings
from prodm.anatomy.thorax import OtherCalcium
from prodm.correction import correct
from prodm.motion.profiles import draw
from prodm.pairs.simulate import simulate

CALCIFIED = PlaqueSettings(zero_calcium_fraction=0.0, count=12.0, count_spread=0.1)
CORONARY_ONLY = OtherCalcium(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Scores:
    """Of one phantom: moving, corrected by the oracle, still under the blocks, still."""

    before: float
    after: float
    under_blocks: float
    true: float


@pytest.fixture
def corrected_by_oracle(oracle: Any) -> Callable[..., Scores]:  # noqa: ANN401
    def run(seed: int, profile: str, **settings: Any) -> Scores:  # noqa: ANN401
        phantom = make_phantom(
            seed, PhantomSettings(plaques=CALCIFIED, other_calcium=CORONARY_ONLY, **settings)
        )
        still, heart = phantom.still, phantom.heart
        rng = np.random.default_rng(seed)
        path = draw(profile, rng, pixel_spacing_mm=still.spacing_mm[1], num_angles=180)
        moved = simulate(still, phantom.calcium, path, rng=rng, engine="phase").moving
        moving = moved.with_hu(np.rint(moved.hu).astype(np.int16))
        known = SimpleNamespace(still=still, moving=moving, heart=heart)
        result = correct(moving, heart, oracle(moved=known))
        hu = moving.hu.copy()
        for roi in result.rois:
            hu[roi.window] = still.hu[roi.window]
        return Scores(
            result.before.agatston,
            result.after.agatston,
            score(moving.with_hu(hu), heart).agatston,
            score(still, heart).agatston,
        )

    return run


def test_a_small_phantom_costs_less_than_a_hundredth(
    corrected_by_oracle: Callable[..., Scores],
) -> None:
    scores = corrected_by_oracle(
        4, "oscillation-x-medium", num_pixels=200, gated_fraction=0.0, coverage_mm=(60.0, 70.0)
    )
    assert abs(scores.before - scores.true) > 0.05 * scores.true
    assert scores.after == pytest.approx(scores.under_blocks, rel=0.01)
    assert scores.after == pytest.approx(scores.true, rel=0.1)  # what was not found is lost


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "profile"),
    [
        (3, "translation-x-large"),
        (4, "jitter-small"),
        (5, "piecewise-y-medium"),
        (7, "oscillation-y-small"),
    ],
)
def test_whole_phantoms_cost_less_than_a_hundredth(
    corrected_by_oracle: Callable[..., Scores], seed: int, profile: str
) -> None:
    scores = corrected_by_oracle(seed, profile)
    assert scores.after == pytest.approx(scores.under_blocks, rel=0.01)
