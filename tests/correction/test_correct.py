"""The way through a scan costs nothing: an oracle gives the truth, an identity the input."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from prodm.agatston import score
from prodm.correction import Identity, NetworkCorrector, correct
from prodm.correction.candidates import find_candidates
from prodm.correction.correct import BEYOND_MM, make_plan
from prodm.correction.geometry import Blocks, Sampling, SpacingRange
from prodm.errors import ProdmError
from prodm.pairs.blocks import MARGIN, cut, grow, inside, without_margin
from prodm.runs import Progress, no_progress
from prodm.volume import Index, Vector

SPACINGS_MM = [(3.0, 0.6, 0.6), (3.0, 1.2, 1.2), (1.0, 0.6, 0.6), (5.6, 0.6, 0.6)]


@dataclass(frozen=True)
class Drawn(Identity):
    """Adds noise of a deviation, and a constant."""

    name: str = "drawn"
    sha256: str | None = "ab" * 32
    draws: bool = True
    calibration: None = None
    noise_hu: float = 30.0
    constant_hu: float = 0.0
    calls: list[int] = field(default_factory=list)

    def __call__(
        self,
        blocks_hu: Blocks,
        spacing_mm: Vector,
        *,
        steps: int | None,
        seed: int,
        progress: Progress = no_progress,
    ) -> Blocks:
        self.calls.append(len(blocks_hu))
        noise = np.random.default_rng(seed).normal(0, self.noise_hu, blocks_hu.shape)
        return blocks_hu + (noise + self.constant_hu).astype(np.float32)


@dataclass(frozen=True)
class Deleting(Identity):
    """Leaves tissue alone."""

    name: str = "deleting"

    def __call__(
        self,
        blocks_hu: Blocks,
        spacing_mm: Vector,
        *,
        steps: int | None,
        seed: int,
        progress: Progress = no_progress,
    ) -> Blocks:
        return np.minimum(blocks_hu, np.float32(60))


@dataclass(frozen=True, eq=False)
class Looking(Identity):
    """Wants to see around its blocks, and paints there."""

    name: str = "looking"
    margin: Index = MARGIN
    seen: list[Blocks] = field(default_factory=list)

    def __call__(
        self,
        blocks_hu: Blocks,
        spacing_mm: Vector,
        *,
        steps: int | None,
        seed: int,
        progress: Progress = no_progress,
    ) -> Blocks:
        self.seen.extend(blocks_hu)
        painted = np.full_like(blocks_hu, 700.0)
        without_margin(painted, self.margin)[...] = without_margin(blocks_hu, self.margin)
        return painted


def test_a_margin_is_shown_and_what_is_said_of_it_is_not_used(moved: Any) -> None:  # noqa: ANN401
    looking = Looking()
    result = correct(moved.moving, moved.heart, looking)
    np.testing.assert_array_equal(result.volume.hu, moved.moving.hu)
    candidates = find_candidates(moved.moving, moved.heart).mask
    plan = make_plan(candidates, Sampling(), moved.moving.spacing_mm)
    assert len(plan.windows) == len(looking.seen)
    for window, seen in zip(plan.windows, looking.seen, strict=True):
        np.testing.assert_array_equal(seen, cut(moved.moving.hu, grow(window, MARGIN)))


@pytest.mark.parametrize("spacing_mm", SPACINGS_MM)
def test_an_oracle_gives_the_true_score(move_made: Any, oracle: Any, spacing_mm: Vector) -> None:  # noqa: ANN401
    moved = move_made(spacing_mm=spacing_mm)
    true = score(moved.still, moved.heart).agatston
    result = correct(moved.moving, moved.heart, oracle(moved=moved))
    assert abs(result.before.agatston - true) > 0.2 * true  # the motion matters
    assert result.after.agatston == pytest.approx(true, rel=0.01)


@pytest.mark.parametrize("spacing_mm", SPACINGS_MM)
def test_each_sample_puts_each_block_in_its_place(
    move_made: Any,  # noqa: ANN401
    oracle: Any,  # noqa: ANN401
    spacing_mm: Vector,
) -> None:
    moved = move_made(spacing_mm=spacing_mm)
    once = correct(moved.moving, moved.heart, oracle(moved=moved))
    thrice = correct(moved.moving, moved.heart, oracle(moved=moved, draws=True), samples=3)
    assert len(once.rois) > 1
    assert thrice.spread is not None
    assert set(thrice.spread.scores) == {once.after.agatston}
    assert np.array_equal(thrice.volume.hu, once.volume.hu)


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
@pytest.mark.parametrize("spacing_mm", SPACINGS_MM)
def test_an_identity_changes_no_bit(move_made: Any, spacing_mm: Vector, dtype: Any) -> None:  # noqa: ANN401
    moved = move_made(spacing_mm=spacing_mm, dtype=dtype)
    result = correct(moved.moving, moved.heart, Identity())
    assert result.volume.hu.dtype == dtype
    assert result.volume.hu.tobytes() == moved.moving.hu.tobytes()
    assert result.rois


@pytest.mark.parametrize(
    "lesions",
    [
        ((0, 50, 60, 900.0), (20, 50, 60, 900.0)),  # the first and the last slices
        ((10, 14, 14, 900.0), (10, 103, 123, 900.0)),  # the corners of the region
        ((8, 50, 20, 900.0), (9, 60, 58, 900.0), (9, 50, 95, 900.0)),  # blocks that overlap
    ],
)
def test_an_oracle_is_right_at_borders_and_under_overlaps(
    move_made: Any,  # noqa: ANN401
    oracle: Any,  # noqa: ANN401
    lesions: Any,  # noqa: ANN401
) -> None:
    moved = move_made(lesions=lesions)
    true = score(moved.still, moved.heart).agatston
    result = correct(moved.moving, moved.heart, oracle(moved=moved))
    assert result.after.agatston == pytest.approx(true, rel=0.01)


def test_fewer_slices_than_a_block_are_corrected_too(move_made: Any, oracle: Any) -> None:  # noqa: ANN401
    moved = move_made(shape=(2, 120, 140), lesions=((0, 50, 60, 900.0),))
    result = correct(moved.moving, moved.heart, oracle(moved=moved))
    assert result.after.agatston == pytest.approx(score(moved.still, moved.heart).agatston)


def test_a_network_that_knows_the_truth_gives_it_in_spite_of_the_clip(
    move_made: Any,  # noqa: ANN401
    oracle: Any,  # noqa: ANN401
) -> None:
    import torch

    from prodm.model import normalise
    from prodm.model.sampler import slice_windows

    moved = move_made()
    pairs = [normalise(torch.from_numpy(blocks)) for blocks in oracle(moved=moved).pairs()]
    known, truth = (slice_windows(blocks, 3) for blocks in pairs)
    table = {window.numpy().tobytes(): n for n, window in enumerate(known)}

    def predict(windows: Any, generator: Any, steps: Any) -> Any:  # noqa: ANN401
        return torch.stack([truth[table[window.numpy().tobytes()]] for window in windows])

    corrector = NetworkCorrector(predict, 3, "oracle", None, draws=False, max_windows=24)
    result = correct(moved.moving, moved.heart, corrector)
    true = score(moved.still, moved.heart)
    assert moved.still.hu.max() > 1000  # the clip at 800 HU has something to cut
    assert result.after.agatston == pytest.approx(true.agatston, rel=0.01)


def test_the_clip_lowers_no_voxel_that_the_network_leaves(moved: Any) -> None:  # noqa: ANN401
    corrector = NetworkCorrector(
        lambda windows, generator, steps: windows, 3, "idle", None, draws=False, max_windows=64
    )
    result = correct(moved.still, moved.heart, corrector)
    assert result.volume.hu.tobytes() == moved.still.hu.tobytes()


def test_voxels_outside_the_blocks_are_bit_identical(moved: Any) -> None:  # noqa: ANN401
    result = correct(moved.moving, moved.heart, Drawn(), samples=1)
    plan = make_plan(
        find_candidates(moved.moving, moved.heart).mask, Sampling(), moved.moving.spacing_mm
    )
    covered = np.zeros(moved.moving.shape, bool)
    for window in plan.windows:
        covered[inside(window, moved.moving.shape)[1]] = True
    changed = result.volume.hu != moved.moving.hu
    assert changed.any()
    assert not covered.all()
    assert not (changed & ~covered).any()


def test_bone_and_calcium_outside_the_region_are_not_touched(move_made: Any) -> None:  # noqa: ANN401
    moved = move_made(lesions=((8, 50, 45, 900.0), (8, 50, 72, 900.0)))
    heart = moved.heart.copy()
    heart[:, :, 60:] = False  # the second lesion lies outside, but under the first one's block
    result = correct(moved.moving, heart, Drawn(constant_hu=50.0), samples=1)
    dense = (moved.moving.hu >= 130) & ~heart
    plan = make_plan(result.candidates.mask, Sampling(), moved.moving.spacing_mm)
    assert dense[plan.box].any()
    np.testing.assert_array_equal(result.volume.hu[dense], moved.moving.hu[dense])


def test_what_lies_far_from_the_region_is_bit_identical(move_made: Any) -> None:  # noqa: ANN401
    """A change fades out beyond the region, also in tissue under a block."""
    moved = move_made(lesions=((8, 50, 45, 900.0),))
    heart = moved.heart.copy()
    heart[:, :, 55:] = False
    result = correct(moved.moving, heart, Drawn(), samples=1)
    (roi,) = result.rois
    assert roi.window[2].stop > 75
    changed = result.volume.hu != moved.moving.hu
    beyond_px = round(BEYOND_MM / 0.6)
    assert changed[:, :, 55 : 55 + beyond_px // 2].any()
    assert not changed[:, :, 54 + beyond_px :].any()


def test_the_mean_of_a_block_is_kept(move_made: Any) -> None:  # noqa: ANN401
    moved = move_made(dtype=np.float32, lesions=((8, 60, 60, 900.0),))
    result = correct(moved.moving, moved.heart, Drawn(constant_hu=25.0), samples=1)
    (roi,) = result.rois
    change = result.volume.hu[roi.window] - moved.moving.hu[roi.window]
    assert np.abs(change).max() > 50
    assert change.mean(dtype=np.float64) == pytest.approx(0, abs=1e-3)


def test_air_stays_above_what_a_file_can_hold(moved: Any) -> None:  # noqa: ANN401
    air = moved.moving.with_hu(np.where(moved.heart, moved.moving.hu, -1020).astype(np.int16))
    result = correct(air, moved.heart, Drawn(noise_hu=200.0), samples=1)
    assert result.volume.hu.min() >= -1024


def test_without_candidates_the_scan_is_unchanged_and_says_so(move_made: Any) -> None:  # noqa: ANN401
    moved = move_made(lesions=())
    result = correct(moved.moving, moved.heart, Drawn())
    assert result.volume is moved.moving
    assert result.after == result.before
    assert result.rois == ()
    (warning,) = result.warnings
    assert warning == "nothing in the region looks like calcium, so the scan is unchanged"


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(moved: Any) -> None:  # noqa: ANN401
    first, again, other = (
        correct(moved.moving, moved.heart, Drawn(), samples=3, seed=seed) for seed in (5, 5, 6)
    )
    assert first.volume.hu.tobytes() == again.volume.hu.tobytes() != other.volume.hu.tobytes()
    assert first.spread == again.spread


def test_samples_give_an_interval_around_the_score_of_the_image(moved: Any) -> None:  # noqa: ANN401
    corrector = Drawn()
    result = correct(moved.moving, moved.heart, corrector, samples=5)
    assert result.spread is not None
    low, high = result.spread.interval_90
    assert len(set(result.spread.scores)) > 1
    assert low < result.after.agatston < high
    assert result.after.agatston == sorted(result.spread.scores)[2]
    assert score(result.volume, moved.heart).agatston == result.after.agatston
    assert sum(result.spread.grade_probabilities.values()) == pytest.approx(1)
    assert corrector.calls == [3] * 5  # all blocks of the scan together, once a sample


def test_the_parts_of_the_score_sum_to_the_whole(moved: Any, oracle: Any) -> None:  # noqa: ANN401
    result = correct(moved.moving, moved.heart, oracle(moved=moved))
    assert sum(roi.agatston_before for roi in result.rois) == pytest.approx(result.before.agatston)
    assert sum(roi.agatston_after for roi in result.rois) == pytest.approx(result.after.agatston)
    voxels = sum(roi.candidate_voxels for roi in result.rois)
    assert voxels == result.candidates.mask.sum()


def test_a_motion_explains_the_truth_but_no_deleted_calcium(moved: Any, oracle: Any) -> None:  # noqa: ANN401
    right = correct(moved.moving, moved.heart, oracle(moved=moved))
    assert all(roi.explained and roi.explained.residual < 0.1 for roi in right.rois)
    assert right.to_json()["rois"][0]["explained"].keys() == {"residual", "angles_deg", "shift_mm"}
    assert not any("no motion explains" in warning for warning in right.warnings)
    deleted = correct(moved.moving, moved.heart, Deleting())
    doubts = [warning for warning in deleted.warnings if "no motion explains" in warning]
    assert len(doubts) == len(deleted.rois)
    assert doubts[0].startswith("no motion explains the change of block 1: the best one leaves")


def test_progress_counts_blocks(moved: Any) -> None:  # noqa: ANN401
    seen: list[tuple[int, int]] = []
    correct(
        moved.moving,
        moved.heart,
        Drawn(),
        samples=2,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(0, 6), (3, 6), (6, 6)]


def test_a_corrector_that_breaks_is_refused(moved: Any) -> None:  # noqa: ANN401
    with pytest.raises(ProdmError, match="values that are not numbers"):
        correct(moved.moving, moved.heart, Drawn(constant_hu=float("nan")))


def test_a_region_of_another_shape_is_refused(moved: Any) -> None:  # noqa: ANN401
    with pytest.raises(ProdmError, match="voxels but the region"):
        correct(moved.moving, moved.heart[1:], Identity())
    with pytest.raises(ProdmError, match="at least one sample"):
        correct(moved.moving, moved.heart, Identity(), samples=0)


def test_result_json_is_the_contract(moved: Any) -> None:  # noqa: ANN401
    content = correct(moved.moving, moved.heart, Drawn(), samples=2).to_json()
    assert list(content) == ["before", "after", "rois", "settings", "model", "seconds", "warnings"]
    assert content["before"]["agatston"] > 0
    assert content["model"] == {"name": "drawn", "sha256": "ab" * 32}
    low, high = content["after"]["agatston_interval_90"]
    assert low <= content["after"]["agatston"] <= high
    assert set(content["after"]["grade_probabilities"]) == {
        "none", "minimal", "mild", "moderate", "severe",
    }  # fmt: skip


def test_a_known_range_is_the_correctors_own(moved: Any, oracle: Any) -> None:  # noqa: ANN401
    thin = SpacingRange(slice_mm=(6.0, 12.0), pixel_mm=(0.25, 0.5))
    result = correct(moved.moving, moved.heart, oracle(moved=moved, known=thin))
    assert result.sampling == Sampling(finer=(1, 2, 2), combs=(2, 1, 1))
    assert result.after.agatston == pytest.approx(
        score(moved.still, moved.heart).agatston, rel=0.01
    )
