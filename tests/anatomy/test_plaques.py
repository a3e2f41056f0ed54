"""Plaques lie in the walls of their arteries, and their burden follows the settings."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from prodm.anatomy.plaques import PlaqueSettings, burden_of_seed, draw_plaques
from prodm.calcium import Vessel

ARTERIES: dict[Vessel, NDArray[np.float64]] = {
    vessel: np.stack([np.arange(0, 80, 0.5), np.full(160, 30.0 * vessel), np.zeros(160)], axis=1)
    for vessel in (Vessel.LAD, Vessel.LCX, Vessel.RCA, Vessel.LM)
}
RADII = {vessel: np.full(160, 2.0) for vessel in ARTERIES}
ALWAYS = PlaqueSettings(zero_calcium_fraction=0.0)


def test_a_plaque_follows_its_artery_within_the_wall() -> None:
    plaques = draw_plaques(np.random.default_rng(0), ARTERIES, RADII, ALWAYS, burden=1.5)
    assert len(plaques) > 10
    for plaque in plaques:
        center = plaque.line_xyz_mm - [0, 30.0 * plaque.vessel, 0]
        assert np.hypot(center[:, 1], center[:, 2]).max() <= 2.0 + 1e-9
        assert (plaque.radii_mm > 0).all()
        assert plaque.radii_mm.max() <= plaque.width_mm
        extent = float(np.ptp(plaque.line_xyz_mm[:, 0]))
        assert abs(extent - plaque.length_mm) < 1.0


def test_the_same_numbers_give_the_same_plaques() -> None:
    first, second = (
        draw_plaques(np.random.default_rng(3), ARTERIES, RADII, ALWAYS, burden=0.5)
        for _ in range(2)
    )
    assert [plaque.to_json() for plaque in first] == [plaque.to_json() for plaque in second]


def test_more_burden_means_more_and_larger_plaques() -> None:
    def drawn(burden: float) -> tuple[float, float]:
        plaques = [
            draw_plaques(np.random.default_rng(seed), ARTERIES, RADII, ALWAYS, burden)
            for seed in range(200)
        ]
        lengths = [plaque.length_mm for some in plaques for plaque in some]
        return float(np.mean([len(some) for some in plaques])), float(np.median(lengths))

    light, median, heavy = drawn(-1.5), drawn(0.0), drawn(1.5)
    assert light[0] < median[0] < heavy[0]
    assert light[1] < heavy[1]


def test_a_share_of_patients_has_no_calcium() -> None:
    settings = replace(ALWAYS, zero_calcium_fraction=0.3)
    empty = [
        not draw_plaques(np.random.default_rng(seed), ARTERIES, RADII, settings, 0.0)
        for seed in range(1000)
    ]
    assert 0.25 < np.mean(empty) < 0.35


def test_vessels_get_their_share() -> None:
    settings = replace(ALWAYS, vessel_shares=(1.0, 0.0, 0.0, 3.0))
    plaques = [
        plaque.vessel
        for seed in range(100)
        for plaque in draw_plaques(np.random.default_rng(seed), ARTERIES, RADII, settings, 1.0)
    ]
    assert set(plaques) == {Vessel.LAD, Vessel.LM}
    assert 0.2 < plaques.count(Vessel.LAD) / len(plaques) < 0.3


def test_burdens_of_neighbouring_seeds_are_spread_like_a_normal_distribution() -> None:
    burdens = [burden_of_seed(seed) for seed in range(50)]
    assert abs(np.mean(burdens)) < 0.05
    assert abs(np.std(burdens) - 1) < 0.08
    np.testing.assert_allclose(np.percentile(burdens, (25, 50, 75)), (-0.674, 0, 0.674), atol=0.08)
