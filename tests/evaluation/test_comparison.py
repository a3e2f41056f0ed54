"""All methods on the same patches: laws that hold whatever the methods are."""

import time

import numpy as np
import pytest

from prodm.errors import ProdmError
from prodm.evaluation.comparison import Comparison, compare
from prodm.evaluation.methods import Blocks, Method, find_method, leave_alone, no_correction
from prodm.evaluation.metrics import judge, measure, summarise
from prodm.evaluation.patches import Selection, select
from prodm.evaluation.similarity import ssim
from prodm.evaluation.tables import band, find_reference, tables_of
from prodm.pairs.blocks import MARGIN, STORED_SHAPE, without_margin
from prodm.pairs.store import Pairs
from prodm.volume import Vector


def oracle_of(selection: Selection) -> Method:
    """Return a method that knows the still blocks by their moving ones."""
    answers = {}
    for blocks in selection.read():
        for motion in blocks.motions:
            moving = selection.read_moving(blocks, motion).astype(np.float32)
            for block, still in zip(moving, blocks.still, strict=True):
                answers[block.tobytes()] = still

    def correct(blocks: Blocks, spacing_mm: Vector, seed: int) -> Blocks:
        return np.stack([answers[block.tobytes()] for block in blocks]).astype(np.float32)

    return Method("oracle", correct, "prodm", "oracle")


def noisy(blocks: Blocks, spacing_mm: Vector, seed: int) -> Blocks:
    """Add grain that depends on the seed."""
    grain = np.random.default_rng(seed).normal(0, 25, blocks.shape)
    return (blocks + grain).astype(np.float32)


@pytest.fixture(scope="module")
def comparison(pairs: Pairs) -> Comparison:
    selection = select(pairs)
    methods = [
        no_correction(),
        oracle_of(selection),
        find_method("identity"),
        Method("grain", noisy, "grain", "grain", is_random=True),
    ]
    return compare(selection, methods, num_samples=5)


def test_the_truth_is_perfect_on_every_level(comparison: Comparison) -> None:
    oracle = comparison.results[1]
    for outcomes in (oracle.patches, oracle.scans):
        summary = summarise(outcomes)
        assert summary.agatston_mae.value == 0
        assert summary.grade_accuracy.value == 1
        assert summary.dice_loss.value == 0
        assert summary.pearson_r == pytest.approx(1)
    assert sum(oracle.invented) == 0


def test_the_input_reproduces_the_row_of_no_correction_exactly(comparison: Comparison) -> None:
    nothing, _, identity, _ = comparison.results
    assert identity.patches == nothing.patches
    assert identity.scans == nothing.scans
    assert identity.invented == nothing.invented
    content = tables_of(comparison, "oracle")
    for level in content["levels"].values():
        first, _, third, _ = level["table2"]
        assert {**first, "method": ""} == {**third, "method": ""}


def test_all_methods_see_the_same_patches(comparison: Comparison) -> None:
    assert len(comparison.patches) == 3 * 2 * 4  # patients, blocks with calcium, motions
    assert len(comparison.scans) == 3 * 4 + 1  # and one scan without calcium, taken once
    assert comparison.num_free_blocks == 3 * 4 + 3
    for results in comparison.results:
        assert len(results.patches) == len(comparison.patches)
        assert len(results.scans) == len(comparison.scans)
        assert len(results.invented) == comparison.num_free_blocks
        for case, outcome in zip(comparison.patches, results.patches, strict=True):
            assert case.agatston == outcome.agatston_true


def test_a_scan_scores_less_than_its_overlapping_blocks_together(comparison: Comparison) -> None:
    for scan in comparison.scans:
        parts = [c.agatston for c in comparison.patches if (c.scan, c.motion) == key(scan)]
        if parts:
            assert max(parts) < scan.agatston < sum(parts)
        else:
            assert scan.agatston == 0


def key(case: object) -> tuple[str, int]:
    return case.scan, case.motion  # type: ignore[attr-defined]


def test_a_margin_is_shown_and_not_judged(pairs: Pairs) -> None:
    """What lies around a block may be looked at; what is said of it counts for nothing."""
    selection = select(pairs)
    shown: list[tuple[int, ...]] = []

    def correct(seen: Blocks, spacing_mm: Vector, seed: int) -> Blocks:
        shown.append(seen.shape[1:])
        painted = np.full_like(seen, 900.0)
        without_margin(painted, MARGIN)[...] = without_margin(seen, MARGIN)
        return painted

    looking = Method("looking", correct, "looking", "looking", margin=MARGIN)
    nothing, looked = compare(selection, [no_correction(), looking]).results
    assert set(shown) == {STORED_SHAPE}
    assert looked.patches == nothing.patches
    assert looked.scans == nothing.scans
    assert looked.invented == nothing.invented
    blocks = next(selection.read())
    seen = selection.read_moving(blocks, blocks.motions[0], MARGIN)
    inner = selection.read_moving(blocks, blocks.motions[0])
    np.testing.assert_array_equal(without_margin(seen, MARGIN), inner)
    assert seen[..., : MARGIN[1], :].any()


def test_only_random_methods_have_an_interval(comparison: Comparison) -> None:
    content = tables_of(comparison, None)
    for level in ("patch", "scan"):
        rows = content["levels"][level]["coverage"]
        assert [row["method"] for row in rows] == ["grain"]
        assert rows[0]["num_samples"] == 5
    grain = comparison.results[3]
    assert all(len(scores) == 5 for scores in grain.patch_samples)
    for outcome, scores in zip(grain.patches, grain.patch_samples, strict=True):
        assert outcome.agatston_predicted == scores[0]


def test_tables_are_of_all_cases_and_add_up(comparison: Comparison) -> None:
    content = tables_of(comparison, find_reference(comparison))
    assert content["reference"] == "oracle"
    assert content["patients"] == 4
    for level in content["levels"].values():
        assert level["table2"][0]["method"] == "no correction"
        assert 80 < level["table2"][0]["mass_kept_percent"] < 105  # some leaves the neighbourhood
        assert level["table2"][1]["mass_kept_percent"] == pytest.approx(100)
        for groups in level["by"].values():
            own = [row["n"] for row in groups if row["method"] == "oracle"]
            assert sum(own) == level["n"]
        for matrix in level["confusion"].values():
            assert np.sum(matrix["counts"]) == level["n"]
        worse = level["differences"][0]["agatston_mae"]
        assert worse["value"] == level["table2"][0]["agatston_mae"]  # the oracle has none
        assert worse["low"] <= worse["value"] <= worse["high"]
    profiles = {row["group"] for row in content["levels"]["patch"]["by"]["profile"]}
    assert len(profiles) == 4


def test_the_paper_stands_beside_with_its_ratios(comparison: Comparison) -> None:
    rows = {(r["method"], r["metric"]): r for r in tables_of(comparison, None)["paper"]}
    assert rows["no correction", "dice_loss"]["ours_ratio"] == 1
    prodm = rows["oracle", "agatston_mae"]
    assert prodm["ours_ratio"] == 0
    assert prodm["paper"] == 9.391
    assert prodm["paper_ratio"] == pytest.approx(9.391 / 37.876)
    assert rows["grain", "dice_loss"]["paper"] is None


def test_one_example_of_each_motion_family(comparison: Comparison) -> None:
    families = [example.case.family for example in comparison.examples]
    assert families == ["jitter", "oscillation", "piecewise", "translation"]
    for example in comparison.examples:
        assert example.ssim["oracle"] == pytest.approx(1, abs=1e-6)
        assert example.ssim["no correction"] < 1


def test_noise_that_reaches_130_hu_is_invented_calcium(pairs: Pairs) -> None:
    def add_a_lesion(blocks: Blocks, spacing_mm: Vector, seed: int) -> Blocks:
        blocks = blocks.copy()
        blocks[:, 8, 30:34, 30:34] = 1000
        return blocks

    selection = select(pairs, max_patches=3)
    results = compare(selection, [Method("liar", add_a_lesion, "liar", "liar")]).results[0]
    assert results.invented
    assert np.mean([count > 0 for count in results.invented]) > 0.9


def test_a_part_keeps_scans_whole_and_is_the_same_each_time(pairs: Pairs) -> None:
    selection = select(pairs, max_patches=10, seed=3)
    assert selection == select(pairs, max_patches=10, seed=3)
    assert selection != select(pairs, max_patches=10, seed=4)
    assert selection.num_patches <= 10
    assert all(len(rows) == 3 for rows in selection.rows.values())
    assert select(pairs, max_patches=1).num_patches == 3


def test_seeds_make_random_methods_repeatable(pairs: Pairs) -> None:
    selection = select(pairs, max_patches=3)
    grain = Method("grain", noisy, "grain", "grain", is_random=True)
    first, again, other = (compare(selection, [grain], seed=seed).results[0] for seed in (0, 0, 1))
    assert first.patches == again.patches
    assert first.patches != other.patches


def test_methods_with_bad_answers_or_the_same_name_are_refused(pairs: Pairs) -> None:
    selection = select(pairs, max_patches=3)

    def to_nan(blocks: Blocks, spacing_mm: Vector, seed: int) -> Blocks:
        return blocks * np.nan

    with pytest.raises(ProdmError, match="broken must return finite HU"):
        compare(selection, [Method("broken", to_nan, "broken", "broken")])
    with pytest.raises(ProdmError, match="the same name"):
        compare(selection, [no_correction(), Method("no correction", leave_alone, "x", "x")])


def test_a_store_without_test_patients_is_refused(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Pairs(pairs.folder)
    rows = tuple(row for row in pairs.blocks if row.split == "train")
    monkeypatch.setitem(trained.__dict__, "blocks", rows)
    with pytest.raises(ProdmError, match="no moving block in its test part"):
        select(trained)


def test_bands_begin_at_their_edges() -> None:
    assert band(1.99, (2.0, 5.0), "mm²") == (0, "< 2 mm²")
    assert band(7.7, (4.0, 23 / 3), "px") == (2, "≥ 7.67 px")


def test_the_metrics_of_two_thousand_patches_take_less_than_twenty_seconds(pairs: Pairs) -> None:
    selection = select(pairs)
    blocks = next(selection.read())
    moving = selection.read_moving(blocks, blocks.motions[0]).astype(np.float32)
    seconds = []
    for _ in range(5):
        started = time.process_time()
        similarities = ssim(moving, blocks.still)
        for n, block in enumerate(moving):
            truth = measure(blocks.still[n], blocks.background[n], blocks.spacing_mm)
            judge(block, truth, ssim=float(similarities[n]))
        seconds.append((time.process_time() - started) / len(moving))
    assert 2000 * min(seconds) < 20
