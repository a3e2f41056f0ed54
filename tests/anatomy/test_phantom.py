"""A phantom is believable, true to its labels, and the same each time."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from prodm.anatomy.chambers import STEP_MM, draw_heart
from prodm.anatomy.fields import Bend, draw_field
from prodm.anatomy.painting import Solid
from prodm.anatomy.phantom import Phantom, PhantomSettings, make_phantom
from prodm.anatomy.plaques import PlaqueSettings
from prodm.calcium import CALCIUM_THRESHOLD_HU, Vessel
from prodm.errors import ProdmError

SMALL = PhantomSettings(
    num_pixels=256, gated_fraction=1.0, gated_pixel_mm=(0.6, 0.6), coverage_mm=(108.0, 108.0),
    slice_spacings_mm=(3.0,), slice_spacing_shares=(1.0,),
    plaques=PlaqueSettings(zero_calcium_fraction=0.0),
)  # fmt: skip
HEAVY_SEED = 13  # a burden of two thirds of a standard deviation or more


@pytest.fixture(scope="module")
def phantom() -> Phantom:
    return make_phantom(HEAVY_SEED, SMALL)


def test_the_same_seed_gives_the_same_scan(phantom: Phantom) -> None:
    again = make_phantom(HEAVY_SEED, SMALL)
    np.testing.assert_array_equal(again.still.hu, phantom.still.hu)
    np.testing.assert_array_equal(again.calcium, phantom.calcium)
    np.testing.assert_array_equal(again.heart, phantom.heart)
    assert again.still.grid == phantom.still.grid
    assert again.patient == phantom.patient == "phantom-00013"


def test_labels_are_calcium_that_an_annotator_would_draw(phantom: Phantom) -> None:
    labelled = phantom.calcium > 0
    assert labelled.any()
    assert phantom.still.hu[labelled].min() >= CALCIUM_THRESHOLD_HU
    assert set(np.unique(phantom.calcium)) <= {0, *(int(v) for v in Vessel if v != 5)}
    in_plane = np.zeros((3, 3, 3), bool)
    in_plane[1] = True
    numbered, _ = ndimage.label(labelled, in_plane)
    assert np.bincount(numbered.ravel())[1:].min() >= 2


def test_every_label_lies_at_a_plaque_of_its_vessel(phantom: Phantom) -> None:
    for z, y, x in np.argwhere(phantom.calcium):
        place = np.array(phantom.still.grid.position_xyz_mm((z, y, x)))
        vessel = Vessel(int(phantom.calcium[z, y, x]))
        nearest = min(
            float(np.linalg.norm(plaque.line_xyz_mm - place, axis=1).min())
            for plaque in phantom.plaques
            if plaque.vessel == vessel
        )
        assert nearest < 5


def test_coronary_calcium_lies_in_the_heart(phantom: Phantom) -> None:
    inside = phantom.heart[phantom.calcium > 0]
    assert inside.mean() > 0.9


def test_taking_the_plaques_away_changes_nothing_but_their_surroundings(phantom: Phantom) -> None:
    """Streams are independent: the patient stays the same patient."""
    none = replace(SMALL, plaques=PlaqueSettings(zero_calcium_fraction=1.0))
    clean = make_phantom(HEAVY_SEED, none)
    assert not clean.plaques
    assert not clean.calcium.any()
    np.testing.assert_array_equal(clean.heart, phantom.heart)
    changed = clean.still.hu != phantom.still.hu
    assert changed[phantom.calcium > 0].all()
    near = ndimage.binary_dilation(phantom.calcium > 0, iterations=9)
    assert changed.mean() < 0.05
    assert near[changed].mean() > 0.5


def test_tissues_have_the_density_of_tissues(phantom: Phantom) -> None:
    hu = phantom.still.hu
    core = ndimage.binary_erosion(phantom.heart, iterations=12)
    assert 35 < np.median(hu[core]) < 52
    rim = phantom.heart & ~ndimage.binary_erosion(phantom.heart, iterations=3)
    assert np.percentile(hu[rim], 20) < -50  # fat around the heart
    assert -920 < np.median(hu[hu < -500]) < -780  # lung
    assert hu.max() > 450  # bone


def test_noise_is_as_strong_as_drawn(phantom: Phantom) -> None:
    core = ndimage.binary_erosion(phantom.heart, iterations=14)
    sharp = phantom.still.hu - ndimage.gaussian_filter(phantom.still.hu.astype(float), (0, 5, 5))
    assert 0.6 < sharp[core].std() / phantom.acquisition.noise_hu < 1.1


def test_what_varies_stays_within_the_settings() -> None:
    settings = replace(
        SMALL, num_pixels=32, coverage_mm=(9.0, 12.0), gated_fraction=0.5,
        gated_pixel_mm=(0.35, 0.5), chest_pixel_mm=(0.6, 0.9),
        slice_spacings_mm=(3.0, 5.0), slice_spacing_shares=(0.5, 0.5),
    )  # fmt: skip
    phantoms = [make_phantom(seed, settings) for seed in range(12)]
    assert {phantom.acquisition.gated for phantom in phantoms} == {True, False}
    assert {phantom.still.spacing_mm[0] for phantom in phantoms} == {3.0, 5.0}
    for phantom in phantoms:
        low, high = (0.35, 0.5) if phantom.acquisition.gated else (0.6, 0.9)
        assert low <= phantom.still.spacing_mm[1] <= high
        assert phantom.still.shape[1:] == (32, 32)
        assert 10 <= phantom.acquisition.noise_hu <= 26


@pytest.mark.parametrize("seed", range(8))
def test_arteries_run_from_the_aorta_through_the_fat_around_the_chambers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bend = Bend(draw_field(rng, 8.0, 22.0), 2.5)
    heart = draw_heart(rng, bend, 1.0)
    for vessel, line in heart.arteries.items():
        steps = np.linalg.norm(np.diff(line, axis=0), axis=1)
        assert steps.max() < 1.1 * STEP_MM
        straight = bend.straight(line)
        assert heart.sac.distance_mm(straight).max() < 1.0, vessel
        chambers = Solid(heart.sac.ellipsoids, 0.0, smooth_mm=2.0)
        assert (chambers.distance_mm(straight) > 0).mean() > 0.85, vessel
    fork = heart.arteries[Vessel.LM][-1]
    assert np.linalg.norm(heart.arteries[Vessel.LAD][0] - fork) < 1
    assert np.linalg.norm(heart.arteries[Vessel.LCX][0] - fork) < 1
    left, right = heart.arteries[Vessel.LM][0], heart.arteries[Vessel.RCA][0]
    root = bend.patient(heart.root_xyz_mm[None])[0]
    for ostium in (left, right):
        assert np.linalg.norm(ostium - root) < 25
    assert left[0] > right[0]  # x runs to the patient's left
    assert heart.arteries[Vessel.LAD][-1][2] < fork[2]  # the apex lies below


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ProdmError, match="must not be negative, got -1"):
        make_phantom(-1)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ProdmError, match="noise_hu must be"):
        PhantomSettings(noise_hu=(20.0, 10.0))
    with pytest.raises(ProdmError, match="at least 16 pixels"):
        PhantomSettings(num_pixels=8)
    with pytest.raises(ProdmError, match="as long"):
        PhantomSettings(slice_spacings_mm=(3.0,))
