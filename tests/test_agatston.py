"""The score must match hand-worked patients, a brute-force twin, and physics."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from prodm.agatston import CLINICAL, RULES, Rule, Score, lesion_labels, score
from prodm.calcium import GRADES, Vessel, grade
from prodm.errors import ProdmError
from prodm.volume import Grid, Vector, Volume

SPACING_MM = (3.0, 0.5, 0.5)  # four pixels make 1 mm2
KVP = 120.0
THICKNESS_MM = 2.5


def scan(*slices: Sequence[Sequence[float]], spacing_mm: Vector = SPACING_MM) -> Volume:
    hu = np.array(slices, dtype=np.float32)
    return Volume(hu, Grid((hu.shape[0], hu.shape[1], hu.shape[2]), spacing_mm))


def everywhere(volume: Volume) -> NDArray[np.uint8]:
    return np.full(volume.shape, Vessel.UNSPECIFIED, dtype=np.uint8)


def agatston(volume: Volume, rule: Rule = CLINICAL) -> float:
    return score(
        volume, everywhere(volume), rule, slice_thickness_mm=THICKNESS_MM, kvp=KVP
    ).agatston


def random_scan(seed: int, shape: tuple[int, int, int] = (4, 12, 12)) -> Volume:
    hu = np.random.default_rng(seed).uniform(-100, 500, shape).astype(np.float32)
    return Volume(hu, Grid(shape, SPACING_MM))


def random_labels(seed: int, volume: Volume) -> NDArray[np.uint8]:
    return np.random.default_rng(seed + 1).integers(0, 6, volume.shape, dtype=np.uint8)


# Worked by hand.


@pytest.mark.parametrize(
    ("peak_hu", "weight"),
    [(130, 1), (199.9, 1), (200, 2), (299.9, 2), (300, 3), (399.9, 3), (400, 4), (1500, 4)],
)
def test_weight_changes_exactly_at_the_published_densities(peak_hu: float, weight: int) -> None:
    image = scan([[peak_hu, 130], [130, 130]])  # 1 mm2
    assert agatston(image) == weight


def test_patient_worked_by_hand() -> None:
    four_pixels_weight_2 = [[129, 140, 210, 0], [0, 150, 160, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    speck_then_weight_1 = [[500, 0, 0, 0], [0, 0, 0, 0], [0, 0, 130, 130], [0, 0, 130, 130]]
    image = scan(four_pixels_weight_2, speck_then_weight_1)
    result = score(image, everywhere(image), calibration_mg_per_hu_mm3=0.001)
    assert result.agatston == 3.0
    assert result.grade == "minimal"
    assert result.volume_mm3 == 2 * 4 * 0.25 * 3.0
    mean_hu = (140 + 210 + 150 + 160 + 4 * 130) / 8
    assert result.mass_mg == pytest.approx(0.001 * mean_hu * 6.0)
    first, second = result.lesions
    assert (first.slice_index, first.area_mm2, first.peak_hu, first.weight) == (0, 1.0, 210.0, 2)
    assert first.position_xyz_mm == (0.75, 0.25, 0.0)
    assert (second.slice_index, second.position_xyz_mm) == (1, (1.25, 1.25, 3.0))


def test_the_rules_differ_on_one_patient_as_worked_by_hand() -> None:
    # Slices 1.5 mm apart and 2.5 mm thick: one lesion of 4 pixels (1 mm2) with peak 399, one
    # single pixel (0.25 mm2) of 250 HU, and one pixel of 129 HU that touches the first by a corner.
    image = scan(
        [
            [399, 140, 0, 0, 0, 250],
            [140, 140, 0, 0, 0, 0],
            [0, 0, 129, 0, 0, 0],
            [0, 0, 0, 0, 0, 0],
        ],
        spacing_mm=(1.5, 0.5, 0.5),
    )
    assert agatston(image) == 1.0 * 3 * 1.5 / 3
    assert agatston(image, RULES["ai-cac"]) == pytest.approx((1.0 * 3 + 0.25 * 2) * 2.5 / 3)
    assert agatston(image, RULES["osirix"]) == 1.0 * 3 + 0.25 * 2
    assert agatston(image, RULES["calciumscoring-jl"]) == 1.25 * 4  # 129 HU counts, 399 weighs 4


def test_diagonal_pixels_belong_to_one_lesion_and_with_edges_only_they_do_not() -> None:
    image = scan(np.where(np.eye(4), 450, 0).tolist())
    assert agatston(image) == 4.0
    assert agatston(image, replace(CLINICAL, connectivity="edge")) == 0.0


def test_calcium_in_neighbouring_slices_is_two_lesions() -> None:
    image = scan([[450, 450], [450, 450]], [[150, 150], [150, 150]])
    assert [lesion.weight for lesion in score(image, everywhere(image)).lesions] == [4, 1]


def test_lesion_of_exactly_one_square_millimetre_counts_despite_rounded_headers() -> None:
    image = scan([[130] * 3] * 3, spacing_mm=(3.0, 0.3333333, 0.3333333))
    assert agatston(image) == pytest.approx(1.0)


def test_smallest_lesion_can_be_given_in_pixels() -> None:
    image = scan([[130, 130, 0, 130]])
    rule = Rule("pixels", min_area_mm2=0, min_pixels=2)
    assert [lesion.area_mm2 for lesion in score(image, everywhere(image), rule).lesions] == [0.5]


def test_lesion_goes_whole_to_the_vessel_of_most_of_its_pixels() -> None:
    image = scan([[150] * 5, [0] * 5, [150] * 5])
    labels = np.zeros(image.shape, dtype=np.uint8)
    labels[0, 0] = [Vessel.LM, Vessel.LM, Vessel.LAD, Vessel.LAD, Vessel.LAD]
    labels[0, 2] = [Vessel.RCA, Vessel.RCA, Vessel.RCA, Vessel.RCA, 0]
    result = score(image, labels)
    assert result.per_vessel == {"LAD": 1.25, "RCA": 1.0, "LM": 0.0}
    mask = lesion_labels(image, labels)
    assert mask[0, 0].tolist() == [Vessel.LAD] * 5
    assert mask[0, 2].tolist() == [Vessel.RCA] * 4 + [0]


def test_where_labels_tie_the_lower_one_wins() -> None:
    image = scan([[150, 150], [150, 150]])
    labels = np.array([[[4, 4], [2, 2]]], dtype=np.uint8)
    assert score(image, labels).per_vessel == {"LCX": 1.0, "LM": 0.0}


def test_mass_counts_what_lies_above_800_hu() -> None:
    image = scan([[1600, 1600], [1600, 1600]])
    result = score(image, everywhere(image), calibration_mg_per_hu_mm3=0.0008)
    assert result.mass_mg == pytest.approx(0.0008 * 1600 * 3.0)
    assert score(image, everywhere(image)).mass_mg is None


def test_tube_voltage_moves_threshold_and_weights() -> None:
    image = scan([[260, 260], [260, 260]])
    rule = RULES["calciumscoring-jl"]
    weights = {
        kvp: score(image, everywhere(image), rule, kvp=kvp).agatston
        for kvp in (70, 80, 100, 120, 135)
    }
    assert weights == {70: 1.0, 80: 1.0, 100: 2.0, 120: 2.0, 135: 2.0}


def test_lesion_between_the_pixel_threshold_and_the_first_step_weighs_nothing() -> None:
    image = scan([[204, 204], [204, 204]])
    result = score(image, everywhere(image), RULES["calciumscoring-jl"], kvp=70)
    assert (result.agatston, result.volume_mm3) == (0.0, 3.0)


# Laws.


def test_calcium_outside_the_region_is_not_scored() -> None:
    image = scan(np.full((4, 4), 900).tolist())
    result = score(image, np.zeros(image.shape, dtype=np.uint8))
    assert (result.agatston, result.lesions, result.per_vessel) == (0.0, (), {})
    assert result.region_voxels == 0


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), parts=st.integers(2, 4))
def test_cutting_every_slice_leaves_agatston_volume_and_mass_alone(seed: int, parts: int) -> None:
    image = random_scan(seed)
    cut = Volume(
        np.repeat(image.hu, parts, axis=0),
        Grid((4 * parts, 12, 12), (3.0 / parts, 0.5, 0.5)),
    )
    whole = score(image, everywhere(image), calibration_mg_per_hu_mm3=0.001)
    pieces = score(cut, everywhere(cut), calibration_mg_per_hu_mm3=0.001)
    assert pieces.agatston == pytest.approx(whole.agatston)
    assert pieces.volume_mm3 == pytest.approx(whole.volume_mm3)
    assert pieces.mass_mg == pytest.approx(whole.mass_mg)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    shift=st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 5)),
)
def test_translating_the_patient_moves_lesions_and_leaves_the_score_alone(
    seed: int, shift: tuple[int, int, int]
) -> None:
    image = random_scan(seed)
    hu = np.full((8, 18, 18), -1000, dtype=np.float32)
    z, y, x = shift
    hu[z : z + 4, y : y + 12, x : x + 12] = image.hu
    moved = Volume(hu, Grid((8, 18, 18), SPACING_MM))
    before, after = score(image, everywhere(image)), score(moved, everywhere(moved))
    assert after.agatston == before.agatston
    offset = moved.grid.position_xyz_mm(shift)
    for one, other in zip(before.lesions, after.lesions, strict=True):
        difference = np.subtract(other.position_xyz_mm, one.position_xyz_mm)
        np.testing.assert_allclose(difference, offset, atol=1e-9)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), axis=st.integers(0, 2))
def test_mirroring_leaves_lesions_where_they_are(seed: int, axis: int) -> None:
    image = random_scan(seed)
    labels = random_labels(seed, image)
    mirrored = image.flip(axis)
    before = score(image, labels)
    after = score(mirrored, np.ascontiguousarray(np.flip(labels, axis)))
    assert after.agatston == pytest.approx(before.agatston)
    assert after.per_vessel == pytest.approx(before.per_vessel)
    places = [
        sorted(tuple(np.round(lesion.position_xyz_mm, 6)) for lesion in result.lesions)
        for result in (before, after)
    ]
    assert places[0] == places[1]


def test_a_bone_outside_the_region_leaves_the_score_alone() -> None:
    image = random_scan(3)
    region = everywhere(image)
    region[:, :, 8:] = 0
    with_bone = image.hu.copy()
    with_bone[:, :, 8:] = 1200
    assert score(image.with_hu(with_bone), region) == score(image, region)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), rule=st.sampled_from(sorted(RULES)))
def test_vessels_and_lesions_sum_to_the_total(seed: int, rule: str) -> None:
    image = random_scan(seed)
    result = score(
        image, random_labels(seed, image), RULES[rule], slice_thickness_mm=THICKNESS_MM, kvp=KVP
    )
    assert math.fsum(result.per_vessel.values()) == pytest.approx(result.agatston)
    assert math.fsum(lesion.agatston for lesion in result.lesions) == result.agatston


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    rule=st.sampled_from([*RULES.values(), replace(CLINICAL, connectivity="edge")]),
)
def test_agrees_with_flood_fill_under_every_rule(seed: int, rule: Rule) -> None:
    image = random_scan(seed)
    labels = random_labels(seed, image)
    result = score(image, labels, rule, slice_thickness_mm=THICKNESS_MM, kvp=KVP)
    found = [(x.slice_index, x.area_mm2, x.peak_hu, int(Vessel[x.vessel])) for x in result.lesions]
    patches = flood_fill_lesions(image.hu, labels, rule)
    assert sorted(found) == sorted(described(patch, image.hu, labels) for patch in patches)
    mask = np.zeros(image.shape, dtype=bool)
    for patch in patches:
        mask[tuple(np.transpose(patch))] = True
    np.testing.assert_array_equal(lesion_labels(image, labels, rule, kvp=KVP) > 0, mask)
    assert result.volume_mm3 == pytest.approx(mask.sum() * 0.75)


Pixel = tuple[int, int, int]


def flood_fill_lesions(
    image_hu: NDArray[np.int16 | np.float32], labels: NDArray[np.uint8], rule: Rule
) -> list[list[Pixel]]:
    """Slow twin of the search for lesions, which shares no code with it."""
    threshold_hu = 129.0 if rule.name == "calciumscoring-jl" else 130.0
    min_pixels = 4 if rule.name in {"clinical", "calciumscoring-jl"} else 1
    steps = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
    if rule.connectivity == "edge":
        steps = [(-1, 0), (1, 0), (0, -1), (0, 1)]
    calcium = np.argwhere((image_hu >= threshold_hu) & (labels > 0))
    left: set[Pixel] = {(int(z), int(y), int(x)) for z, y, x in calcium}
    patches = []
    while left:
        patch: list[Pixel] = []
        frontier = [left.pop()]
        while frontier:
            z, y, x = pixel = frontier.pop()
            patch.append(pixel)
            around = {(z, y + dy, x + dx) for dy, dx in steps} & left
            left -= around
            frontier += around
        if len(patch) >= min_pixels:
            patches.append(patch)
    return patches


def described(
    patch: list[Pixel], image_hu: NDArray[np.int16 | np.float32], labels: NDArray[np.uint8]
) -> tuple[int, float, float, int]:
    votes = [int(labels[pixel]) for pixel in patch]
    vessel = min(set(votes), key=lambda label: (-votes.count(label), label))
    return patch[0][0], len(patch) * 0.25, max(float(image_hu[p]) for p in patch), vessel


@given(st.floats(0, 5000), st.floats(0, 5000))
def test_grades_leave_no_gap_and_never_fall_as_the_score_rises(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert GRADES.index(grade(low)) <= GRADES.index(grade(high))


# The result.


def test_json_has_the_keys_of_the_contract_and_survives_a_round_trip() -> None:
    image = random_scan(5)
    content = score(image, random_labels(5, image)).to_json()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert list(content) == [
        "agatston",
        "volume_mm3",
        "mass_mg",
        "grade",
        "rule",
        "region",
        "per_vessel",
        "lesions",
    ]
    assert content["region"] == {
        "source": "given",
        "voxels": int((random_labels(5, image) > 0).sum()),
    }
    assert list(content["lesions"][0]) == [
        "slice_index",
        "position_xyz_mm",
        "area_mm2",
        "peak_hu",
        "weight",
        "vessel",
        "agatston",
    ]
    assert content["rule"]["name"] == "clinical"


def test_a_found_region_is_said_to_be_found() -> None:
    image = random_scan(5)
    result = score(image, np.ones(image.shape, dtype=bool), region_source="found")
    region = result.to_json()["region"]
    assert region["source"] == "found"
    assert "aorta or the valves inside it is counted" in region["note"]
    assert set(result.per_vessel) == {"UNSPECIFIED"}


def test_the_rule_in_the_result_is_the_one_of_the_scan_s_voltage() -> None:
    image = random_scan(5)
    result = score(image, everywhere(image), RULES["calciumscoring-jl"], kvp=100)
    assert result.to_json()["rule"]["threshold_hu"] == 155.0


# Refusals.


def refused(image: Volume, region: NDArray[np.uint8], rule: Rule = CLINICAL) -> Score:
    return score(image, region, rule)


def test_shapes_must_agree() -> None:
    with pytest.raises(ProdmError, match=r"the scan has .* voxels but the region"):
        refused(random_scan(0), np.zeros((2, 4, 4), dtype=np.uint8))


def test_unknown_labels_are_refused() -> None:
    image = random_scan(0)
    with pytest.raises(ProdmError, match=r"labels are 0 to 5 .* got 6"):
        refused(image, everywhere(image) + np.uint8(1))
    with pytest.raises(ProdmError, match="must hold uint8 labels, got int16"):
        refused(image, everywhere(image).astype(np.int16))


def test_rules_ask_for_what_they_need() -> None:
    image = random_scan(0)
    with pytest.raises(ProdmError, match=r"slice thickness.*--slice-thickness-mm"):
        refused(image, everywhere(image), RULES["ai-cac"])
    with pytest.raises(ProdmError, match=r"tube voltage.*--kvp"):
        refused(image, everywhere(image), RULES["calciumscoring-jl"])
    with pytest.raises(ProdmError, match="70, 80, 100, 120, 135 kV, got 140 kV"):
        score(image, everywhere(image), RULES["calciumscoring-jl"], kvp=140)
    with pytest.raises(ProdmError, match="slice thickness must be positive"):
        score(image, everywhere(image), RULES["ai-cac"], slice_thickness_mm=0.0)
    with pytest.raises(ProdmError, match="calibration must be positive"):
        score(image, everywhere(image), calibration_mg_per_hu_mm3=-1.0)


def test_rules_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ProdmError, match="threshold must be a number"):
        Rule("bad", threshold_hu=math.nan)
    with pytest.raises(ProdmError, match="smallest area must be 0"):
        Rule("bad", min_area_mm2=-1.0)
    with pytest.raises(ProdmError, match="at least one pixel"):
        Rule("bad", min_pixels=0)
    with pytest.raises(ProdmError, match="diagonal or edge"):
        Rule("bad", connectivity="corner")  # type: ignore[arg-type]
    with pytest.raises(ProdmError, match="spacing, thickness or none"):
        Rule("bad", thickness="slab")  # type: ignore[arg-type]


def test_thousands_of_specks_are_scored_one_by_one() -> None:
    hu = np.random.default_rng(0).normal(40, 10, (60, 512, 512)).astype(np.int16)
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):  # four pixels, 1 mm2, weight 4
        hu[20:40, 200 + row : 300 : 5, 200 + column : 300 : 5] = 500
    image = Volume(hu, Grid((60, 512, 512), SPACING_MM))
    found = score(image, everywhere(image))
    assert len(found.lesions) == 20 * 20 * 20
    assert found.agatston == pytest.approx(4 * 20 * 20 * 20)
