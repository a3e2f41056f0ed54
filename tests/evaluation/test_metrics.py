"""Each metric against a case worked by hand, a law, and a twin that shares no code."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage, stats
from skimage.metrics import structural_similarity

from prodm.calcium import grade
from prodm.errors import ProdmError
from prodm.evaluation.metrics import (
    MAX_SHIFT_PIXELS,
    Outcome,
    agatston,
    dice_loss,
    grade_indices,
    invented_lesions,
    judge,
    mean_of,
    measure,
    pearson_r,
    scored_region,
    shifted_dice_loss,
    summarise,
)
from prodm.evaluation.similarity import ssim

SPACING_MM = (3.0, 1.0, 1.0)
Block = NDArray[np.int16]


def block_with(hu: int, z: int = 4, y: int = 10, x: int = 10, size: int = 3) -> tuple[Block, Block]:
    """Return a still block with one square lesion in one slice, and its background of 40 HU."""
    background = np.full((8, 32, 32), 40, dtype=np.int16)
    still = background.copy()
    still[z, y : y + size, x : x + size] = hu
    return still, background


def test_scores_of_a_lesion_worked_by_hand() -> None:
    still, background = block_with(250)  # 9 mm2 at weight 2, slices of 3 mm: 18
    truth = measure(still, background, SPACING_MM)
    assert truth.agatston == 18
    assert truth.largest_lesion_mm2 == 9
    assert truth.peak_hu == 250
    assert truth.excess_hu == 9 * 210
    moved = background.astype(np.float32)
    moved[4, 10:13, 11:14] = 150  # 9 mm2 at weight 1, shifted by one pixel
    outcome = judge(moved, truth)
    assert outcome.agatston_predicted == 9
    assert outcome.absolute_error == 9
    assert outcome.grade_is_right is False  # 18 is mild, 9 minimal
    assert outcome.dice_loss == pytest.approx(1 - 2 * 6 / 18)
    assert outcome.shifted_dice_loss == 0
    summary = summarise([outcome])
    assert summary.mass_kept == pytest.approx(110 / 210)


def test_the_truth_itself_is_perfect() -> None:
    outcomes = []
    for hu, size in ((150, 2), (250, 3), (500, 8), (900, 12)):
        still, background = block_with(hu, size=size)
        truth = measure(still, background, SPACING_MM)
        similarity = float(ssim(still.astype(np.float32), still))
        outcomes.append(judge(still.astype(np.float32), truth, ssim=similarity))
    summary = summarise(outcomes)
    assert summary.agatston_mae.value == 0
    assert summary.grade_accuracy.value == 1
    assert summary.dice_loss.value == 0
    assert summary.shifted_dice_loss.value == 0
    assert summary.pearson_r == pytest.approx(1)
    assert summary.ssim is not None
    assert summary.ssim.value == pytest.approx(1)
    assert summary.mass_kept == pytest.approx(1)


def test_bone_and_what_is_near_it_counts_nowhere() -> None:
    still, background = block_with(250)
    background[4, 20, 20] = 300
    still[4, 20, 20:24] = 300  # calcium that touches the bone
    region = scored_region(background)
    assert not region[4, 18:23, 18:23].any()
    assert region[4].sum() == 32 * 32 - 25
    twin = ndimage.binary_dilation(background >= 130, np.ones((1, 5, 5), dtype=bool))
    np.testing.assert_array_equal(region, ~twin)
    # Of the four bright pixels one lies beyond the reach: 1 mm2 at weight 3.
    assert measure(still, background, SPACING_MM).agatston == 18 + 3


def test_the_region_at_the_border_equals_its_twin() -> None:
    background = np.random.default_rng(0).integers(0, 135, (4, 12, 15)).astype(np.int16)
    twin = ndimage.binary_dilation(background >= 130, np.ones((1, 5, 5), dtype=bool))
    np.testing.assert_array_equal(scored_region(background), ~twin)


def test_dice_equals_its_twin() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.random((2, 4, 9, 9)) < 0.3
    from sklearn.metrics import f1_score

    assert 1 - dice_loss(first, second) == pytest.approx(f1_score(second.ravel(), first.ravel()))
    assert dice_loss(first & False, second & False) == 0
    assert dice_loss(first, first) == 0
    assert dice_loss(first, ~first) == 1


def test_the_best_translation_equals_trying_them_all() -> None:
    rng = np.random.default_rng(1)
    for density in (0.002, 0.05):
        true, predicted = rng.random((2, 3, 24, 20)) < density
        true[1, 3, 4] = True
        reach = MAX_SHIFT_PIXELS
        padded = np.pad(predicted, ((0, 0), (reach, reach), (reach, reach)))
        best = max(
            int((padded[:, y : y + 24, x : x + 20] & true).sum())
            for y in range(2 * reach + 1)
            for x in range(2 * reach + 1)
        )
        expected = 1 - 2 * best / (true.sum() + predicted.sum())
        assert shifted_dice_loss(predicted, true) == pytest.approx(expected)


def test_a_shift_within_reach_costs_nothing_and_one_beyond_costs_all() -> None:
    true = np.zeros((2, 64, 64), dtype=bool)
    true[:, 5:8, 5:9] = True
    near = np.roll(true, (16, -3), axis=(1, 2))  # the reach that docs/evaluation.md states
    far = np.roll(true, 16 + 3, axis=1)
    assert dice_loss(near, true) == 1
    assert shifted_dice_loss(near, true) == 0
    assert shifted_dice_loss(far, true) == 1
    assert shifted_dice_loss(true & False, true & False) == 0
    assert shifted_dice_loss(true, true & False) == 1
    assert shifted_dice_loss(true & False, true) == 1


def test_slices_share_one_translation() -> None:
    true = np.zeros((2, 32, 32), dtype=bool)
    true[:, 10, 10] = True
    predicted = np.zeros_like(true)
    predicted[0, 10, 12] = predicted[1, 10, 8] = True
    assert shifted_dice_loss(predicted, true) == pytest.approx(0.5)


def test_ssim_equals_that_of_scikit_image() -> None:
    rng = np.random.default_rng(2)
    first = rng.normal(100, 200, (2, 3, 40, 33)).astype(np.float32)
    second = (first + rng.normal(0, 80, first.shape)).astype(np.float32)
    for values, a, b in zip(ssim(first, second), first, second, strict=True):
        twin = np.mean(
            [
                structural_similarity(
                    (one.astype(float).clip(-200, 800) + 200) / 1000,
                    (other.astype(float).clip(-200, 800) + 200) / 1000,
                    data_range=1.0,
                    gaussian_weights=True,
                    sigma=1.5,
                    use_sample_covariance=False,
                )
                for one, other in zip(a, b, strict=True)
            ]
        )
        assert values == pytest.approx(twin, abs=1e-5)


def test_ssim_is_one_for_equal_images_and_takes_any_leading_axes() -> None:
    image = np.random.default_rng(3).normal(0, 100, (2, 2, 4, 16, 16)).astype(np.float32)
    assert ssim(image, image).shape == (2, 2)
    np.testing.assert_allclose(ssim(image, image), 1, atol=1e-6)


def test_ssim_refuses_what_it_cannot_compare() -> None:
    image = np.zeros((2, 16, 16), dtype=np.float32)
    with pytest.raises(ProdmError, match="images of one size"):
        ssim(image, image[:1])
    with pytest.raises(ProdmError, match="11 x 11"):
        ssim(image[:, :10], image[:, :10])


def test_means_and_correlation_equal_their_twins() -> None:
    rng = np.random.default_rng(4)
    first, second = rng.gamma(1, 100, 50), rng.gamma(1, 100, 50)
    mean = mean_of(first)
    assert mean.value == pytest.approx(first.mean())
    assert mean.error == pytest.approx(stats.sem(first))
    assert mean.n == 50
    assert pearson_r(first, second) == pytest.approx(stats.pearsonr(first, second).statistic)
    assert pearson_r(first, np.ones(50)) is None
    assert mean_of([2.0]).error == 0


def test_grade_numbers_agree_with_the_names() -> None:
    scores = [0, 0.1, 10, 10.0001, 99, 100, 100.5, 400, 400.5, 4000]
    names = ("none", "minimal", "mild", "moderate", "severe")
    assert [names[n] for n in grade_indices(scores)] == [grade(score) for score in scores]


def test_only_new_lesions_of_a_square_millimetre_are_invented() -> None:
    background = np.full((4, 32, 32), 40, dtype=np.int16)
    truth = measure(background, background, (3.0, 0.5, 0.5))  # a pixel has 0.25 mm2
    moving = background.astype(np.float32)
    moving[1, 5, 5] = 140  # one bright pixel of noise
    corrected = moving.copy()
    assert invented_lesions(corrected, moving, truth) == 0
    corrected[1, 5:7, 5:7] = 200  # it grew, but it was there
    corrected[2, 20, 20:23] = 200  # 0.75 mm2
    assert invented_lesions(corrected, moving, truth) == 0
    corrected[3, 20, 20:24] = 200  # 1 mm2 out of nothing
    assert invented_lesions(corrected, moving, truth) == 1
    assert agatston(corrected, truth) == 2 + 2


def test_right_grade_needs_the_same_grade() -> None:
    outcome = Outcome(10.0, 10.5, 0, 0, 1, 1)
    assert not outcome.grade_is_right
    assert Outcome(10.5, 99.0, 0, 0, 1, 1).grade_is_right
