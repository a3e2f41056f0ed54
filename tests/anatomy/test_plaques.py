"""Plaques lie in the walls of their arteries, and their burden follows the settings."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from prodm.anatomy.plaques import PlaqueSettings, draw_plaques, rank_of_seed
from prodm.calcium import Vessel

ARTERIES: dict[Vessel, NDArray[np.float64]] = {
    vessel: np.stack([np.arange(0, 80, 0.5), np.full(160, 30.0 * vessel), np.zeros(160)], axis=1)
    for vessel in (Vessel.LAD, Vessel.LCX, Vessel.RCA, Vessel.LM)
}
RADII = {vessel: np.full(160, 2.0) for vessel in ARTERIES}
ALWAYS = PlaqueSettings(zero_calcium_fraction=0.0)


def test_a_plaque_follows_its_artery_within_the_wall() -> None:
    plaques = draw_plaques(np.random.default_rng(0), ARTERIES, RADII, ALWAYS, rank=0.95)
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
        draw_plaques(np.random.default_rng(3), ARTERIES, RADII, ALWAYS, rank=0.7) for _ in range(2)
    )
    assert [plaque.to_json() for plaque in first] == [plaque.to_json() for plaque in second]


def test_a_higher_rank_means_more_and_larger_plaques() -> None:
    larger = replace(ALWAYS, burden_to_size=0.3)

    def drawn(rank: float) -> tuple[float, float]:
        plaques = [
            draw_plaques(np.random.default_rng(seed), ARTERIES, RADII, larger, rank)
            for seed in range(200)
        ]
        lengths = [plaque.length_mm for some in plaques for plaque in some]
        return float(np.mean([len(some) for some in plaques])), float(np.median(lengths))

    light, median, heavy = drawn(0.07), drawn(0.5), drawn(0.93)
    assert light[0] < median[0] < heavy[0]
    assert light[1] < heavy[1]


def test_the_lowest_ranks_have_no_calcium() -> None:
    settings = replace(ALWAYS, zero_calcium_fraction=0.3)
    rng = np.random.default_rng(0)
    assert not draw_plaques(rng, ARTERIES, RADII, settings, 0.29)
    assert draw_plaques(rng, ARTERIES, RADII, settings, 0.31)
    free = replace(ALWAYS, zero_calcium_fraction=1.0)
    assert not draw_plaques(rng, ARTERIES, RADII, free, 1.0)


def test_vessels_get_their_share() -> None:
    settings = replace(ALWAYS, vessel_shares=(1.0, 0.0, 0.0, 3.0))
    plaques = [
        plaque.vessel
        for seed in range(100)
        for plaque in draw_plaques(np.random.default_rng(seed), ARTERIES, RADII, settings, 0.85)
    ]
    assert set(plaques) == {Vessel.LAD, Vessel.LM}
    assert 0.2 < plaques.count(Vessel.LAD) / len(plaques) < 0.3


def test_ranks_of_neighbouring_seeds_are_spread_evenly() -> None:
    for first in (0, 1000):
        ranks = np.sort([rank_of_seed(seed) for seed in range(first, first + 50)])
        assert np.abs(ranks - (np.arange(50) + 0.5) / 50).max() < 0.03
