"""What is learnt from must be the truth, in the frame of the motion that was found."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model import polishing
from prodm.model.focusing import REFOCUSED, VIEWS
from prodm.model.motions import FoundMotion
from prodm.model.phasing import Separation, Separator
from prodm.model.placing import translation
from prodm.model.reading import angles_rad, without_translation
from prodm.motion.trajectory import Trajectory
from prodm.pairs.blocks import STORED_SHAPE
from prodm.pairs.store import BlockRow
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS
from prodm.training import findings, windows
from prodm.training.findings import (
    TYPICAL_ERROR_PX,
    Finding,
    carried_along,
    draw_closer,
    draw_closer_finding,
    draw_finding,
    draw_findings,
    draw_places,
    find,
    nearly,
    swapped,
)
from prodm.training.kept import load_kept
from prodm.training.windows import Block, WindowSettings, draw_trajectory

SETTINGS = WindowSettings(calcium_share=1.0, random_start_share=0.0)
BLIND = Separator(lambda *_: torch.zeros(0), 3)  # what it would see is given by the tests
SPACING_MM = (3.0, 0.5, 0.5)


def block() -> Block:
    """A lesion of two unequal spots before no tissue at all."""
    z, y, x = np.mgrid[: STORED_SHAPE[0], : STORED_SHAPE[1], : STORED_SHAPE[2]]
    still = 700 * np.exp(-((x - 50) ** 2 + (y - 46) ** 2) / 6 - (z - 9) ** 2)
    still += 300 * np.exp(-((x - 45) ** 2 + (y - 49) ** 2) / 6 - (z - 9) ** 2)
    row = BlockRow("scan", 0, "patient", "train", 0, 0, 0, *SPACING_MM, 100)
    return Block(
        row, still.round().astype(np.int16), np.zeros(STORED_SHAPE, np.int16), still > 130, 0
    )


def path_of(trajectory: Trajectory) -> FoundMotion:
    path_mm = trajectory.displacement(np.arange(NUM_VIEWS) / NUM_VIEWS)
    path = torch.from_numpy(path_mm / (0.5, 0.5, 3.0)).float()
    shift = phase.shift_of(path[:, :2], phase.view_angles_rad(NUM_VIEWS))
    return FoundMotion(shift, 0.0, path[:, 2])


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Finding:
    """What a finder makes of the block that is right but for its place: (2.7, -4.2) pixels."""
    drawn: list[Trajectory] = []

    def remembered(*arguments: object) -> Trajectory:
        drawn.append(draw_trajectory(*arguments))  # type: ignore[arg-type]
        return drawn[-1]

    def separated(blocks: Tensor, separator: Separator) -> Separation:
        return Separation(torch.zeros_like(blocks), torch.full_like(blocks, 30.0))

    monkeypatch.setattr(windows, "draw_trajectory", remembered)
    monkeypatch.setattr(findings, "separate_by_network", separated)
    monkeypatch.setattr(
        findings, "find_motion", lambda *_: path_of(drawn[-1]).translated(2.7, -4.2)
    )
    result = find(block(), BLIND, SETTINGS, np.random.default_rng(3))
    assert result is not None
    return result


def test_the_truth_is_in_the_frame_of_what_was_found(found: Finding) -> None:
    """What was refocused lies on ``still``, whatever the place."""
    refocused = found.views[REFOCUSED].astype(float)
    still = found.still.astype(float)
    assert np.corrcoef(refocused.ravel(), still.ravel())[0, 1] > 0.97
    assert refocused.sum() == pytest.approx(still.sum(), rel=0.1)
    peaks = [np.unravel_index(image.argmax(), image.shape) for image in (refocused, still)]
    assert peaks[0] == peaks[1]


def test_a_polisher_is_shown_what_a_focuser_left(
    found: Finding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores count near all calcium, also near what reaches no threshold."""

    def focuser(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        return y[:, 3 * REFOCUSED + 1, None]

    separator = replace(BLIND, focuser=(focuser, 3))
    closer = find(block(), separator, SETTINGS, np.random.default_rng(3), closer=True)
    assert closer is not None
    np.testing.assert_array_equal(closer.views[polishing.VIEWS.index("lesion")], closer.lesion)
    weighed = closer.views[polishing.WEIGHED].astype(float)
    assert np.corrcoef(weighed.ravel(), closer.still.ravel())[0, 1] > 0.97
    faint = replace(closer, still=(closer.still * (100 / closer.still.max())).astype(np.int16))
    options = {"num_slices": 3, "batch_size": 2, "seed": (1,), "radius_pixels": 4}
    seen = draw_closer([faint], **options)
    assert not seen.calcium.any()  # 100 HU before no tissue
    assert seen.lesions.any()
    assert not draw_findings([faint], **options).lesions.any()  # type: ignore[arg-type]
    assert seen.views is not None
    shown = seen.views[:, 3 * polishing.VIEWS.index("lesion") + 1]
    assert float(shown.max()) > 100  # HU; nothing is taken for odds
    with pytest.raises(ProdmError, match="what a focuser saw"):
        draw_closer_finding([block()], BLIND, SETTINGS, (1,))


def test_a_placer_is_shown_what_a_focuser_saw(
    found: Finding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what was refocused, and the image without that, also where it leaves too much."""
    np.testing.assert_array_equal(found.lesion, found.views[REFOCUSED])  # there was no focuser
    shown: list[Tensor] = []

    def focuser(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        shown.append(y[:, 3 * REFOCUSED + 1, None] / 2)
        return shown[-1]

    again = find(block(), replace(BLIND, focuser=(focuser, 3)), SETTINGS, np.random.default_rng(3))
    assert again is not None
    lesion = again.lesion.astype(float)
    half = again.views[REFOCUSED] / 2
    counted = lesion > 100  # what is fainter may be grain, and is left out
    assert counted.any()
    np.testing.assert_allclose(lesion[counted], half[counted], atol=1)
    # There is no tissue: half of the lesion is left over, but no more than grain where it passes.
    assert float(np.abs(again.clean).max()) < 0.3 * float(np.abs(again.views[0]).max())


def test_slices_without_calcium_are_left_out(found: Finding) -> None:
    assert len(found.still) < 10
    assert found.slices.min() == 1  # one slice more on either side
    assert found.slices.max() == len(found.still) - 2
    assert found.views.shape == (len(VIEWS), *found.still.shape)


def test_batches_repeat_with_their_seed_and_hold_the_truth(found: Finding) -> None:
    first, again, other = (
        draw_findings([found], num_slices=3, batch_size=4, seed=seed, radius_pixels=5)
        for seed in ((1, 2), (1, 2), (1, 3))
    )
    assert first.views is not None
    assert again.views is not None
    assert other.views is not None
    assert torch.equal(first.views, again.views)
    assert not torch.equal(first.views, other.views)
    assert first.views.shape == (4, 15, 64, 64)
    refocused = first.views[:, 3 * REFOCUSED + 1]
    assert first.background is not None
    still = 1000 * (first.still - first.background)[:, 0]
    for one, true in zip(refocused, still, strict=True):  # mirrored alike
        assert np.corrcoef(one.ravel(), true.ravel())[0, 1] > 0.9
    assert torch.equal(first.calcium[:, 0], still >= 130)
    odds = first.views[:, 3 * VIEWS.index("odds") :]
    torch.testing.assert_close(odds, torch.full_like(odds, 0.1))


def test_a_lesion_moved_by_its_place_lies_where_it_rests(found: Finding) -> None:
    """The place is the whole part of the error, and holds however the block is mirrored."""
    assert found.place.tolist() == [-4, 3]  # rows, columns: (2.7, -4.2) pixels in x and y
    batch = draw_places([found], num_slices=3, batch_size=8, seed=(0,), radius_pixels=5)
    assert batch.views is not None
    assert batch.place is not None
    assert float(batch.place.float().std(dim=0).min()) > 3  # it is shown anywhere
    lesions = batch.views.reshape(8, 3, 2, 3, 64, 64)[:, :, 1, 1]
    for lesion, place, calcium in zip(lesions, batch.place, batch.calcium, strict=True):
        back = torch.roll(lesion, tuple(place.tolist()), (-2, -1))
        assert bool(calcium[back > 60].all())  # which was taken out with what lies beside it
        middles = [torch.nonzero(image).float().mean(dim=0) for image in (back > 60, calcium)]
        assert float((middles[0] - middles[1])[1:].norm()) < 1


def test_what_is_left_of_a_lesion_tells_a_placer_nothing(found: Finding) -> None:
    """It lies elsewhere in every sample, however far from where calcium was taken out."""
    batch = draw_places([found], num_slices=1, batch_size=12, seed=(1,), radius_pixels=5)
    assert batch.views is not None
    left_over = batch.views.reshape(12, 3, 2, 64, 64)[:, 0, 0].abs()
    away = [
        torch.nonzero(left == left.max())[0] - torch.nonzero(calcium[0]).float().mean(dim=0)
        for left, calcium in zip(left_over, batch.calcium, strict=True)
    ]
    assert float(torch.stack(away).norm(dim=1).std()) > 1.5


def test_a_clean_block_holds_what_is_seen_without_the_lesion(found: Finding) -> None:
    seen = found.views[VIEWS.index("seen")].astype(float)
    left = found.clean.astype(float)
    assert np.sum(left**2) < 0.05 * np.sum(seen**2)


def test_tissue_around_calcium_moves_with_it_and_no_other() -> None:
    """A drift carries a spot of tissue beside the calcium along; far away nothing changes."""
    _, y, x = np.mgrid[:5, :96, :96]
    background = torch.from_numpy(
        (100.0 * np.exp(-((x - 44) ** 2 + (y - 40) ** 2) / 8)).astype(np.float32)
    )
    background += torch.from_numpy(
        (100.0 * np.exp(-((x - 80) ** 2 + (y - 84) ** 2) / 8)).astype(np.float32)
    )
    calcium = torch.from_numpy((500.0 * ((abs(x - 40) < 3) & (abs(y - 40) < 3))).astype(np.float32))
    away = FoundMotion(torch.zeros(NUM_VIEWS), 0.0).translated(5.0, 0.0)
    tissue = carried_along(background, calcium, away)
    assert int(tissue[2, 40, 30:60].argmax()) + 30 == 49
    assert float(tissue[2, 40, 44]) < 60
    torch.testing.assert_close(tissue[2, 75:, 70:], background[2, 75:, 70:], atol=1.0, rtol=0)
    assert torch.equal(carried_along(background, torch.zeros_like(calcium), away), background)


def test_what_was_wrongly_taken_to_move_rests_where_it_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bone before no calcium: undone it lies elsewhere, and its place brings it back."""
    z, y, x = np.mgrid[: STORED_SHAPE[0], : STORED_SHAPE[1], : STORED_SHAPE[2]]
    bone = (700 * np.exp(-((x - 48) ** 2 + (y - 48) ** 2) / 6 - (z - 9) ** 2)).astype(np.int16)
    without = Block(block().row, bone, bone, np.zeros(STORED_SHAPE, bool), 0)
    monkeypatch.setattr(
        findings,
        "separate_by_network",
        lambda blocks, _: Separation(torch.zeros_like(blocks), torch.zeros_like(blocks)),
    )
    away = FoundMotion(torch.zeros(NUM_VIEWS), 0.0).translated(3.0, -5.0)
    monkeypatch.setattr(findings, "find_motion", lambda *_: away)
    result = find(without, BLIND, SETTINGS, np.random.default_rng(1))
    assert result is not None
    assert not result.still.any()
    assert result.place.tolist() == [-5, 3]


def test_swapped_calcium_lies_on_the_tissue_of_the_other_block() -> None:
    ours = block()
    theirs = replace(
        ours,
        row=replace(ours.row, scan="other"),
        background=np.full(STORED_SHAPE, 40, np.int16),
        still=np.full(STORED_SHAPE, 999, np.int16),
        calcium=np.ones(STORED_SHAPE, np.bool_),
    )
    results = [swapped(ours, theirs, np.random.default_rng(seed)) for seed in range(20)]
    made = [one for one in results if one is not None]
    assert len(made) == 20
    brighter = [float(np.ptp(one.still) / np.ptp(ours.still)) for one in made]
    assert 0.8 < np.exp(np.mean(np.log(brighter))) < 1.25
    assert np.std(np.log(brighter)) > 0.1
    for one, scale in zip(made, brighter, strict=True):
        assert one.row.scan == "other"
        assert one.background is theirs.background
        excess = one.still.astype(float) - 40
        np.testing.assert_allclose(excess.sum(), scale * ours.still.sum(), rtol=0.02)
        assert one.calcium.any()
        assert (one.still[one.calcium] >= 130).all()
    assert len({tuple(np.argwhere(one.still == one.still.max())[0]) for one in made}) > 3


def test_calcium_is_swapped_only_where_voxels_are_alike_and_some_is_left() -> None:
    ours, rng = block(), np.random.default_rng(0)
    coarse = replace(ours, row=replace(ours.row, spacing_x_mm=0.7))
    assert swapped(ours, coarse, rng) is None
    lung = replace(ours, background=np.full(STORED_SHAPE, -5000, np.int16))
    assert swapped(ours, lung, rng) is None
    free = replace(ours, still=ours.background, calcium=np.zeros(STORED_SHAPE, np.bool_))
    assert swapped(free, ours, rng) is free


def test_a_share_of_the_findings_has_swapped_calcium(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Block] = []

    def remembered(one: Block, *_: object, **__: object) -> str:
        asked.append(one)
        return "found"

    monkeypatch.setattr(findings, "find", remembered)
    ours = block()
    for share in (0.0, 0.5, 1.0):
        asked.clear()
        settings = replace(SETTINGS, swapped_share=share)
        for n in range(40):
            draw_finding([ours], BLIND, settings, (0, n))
        same = sum(one is ours for one in asked)
        assert (same == 40 * (1 - share)) if share != 0.5 else (10 < same < 30)


def test_a_motion_near_the_truth_is_off_by_a_whole_number_of_pixels() -> None:
    """And wrong in its shape by as much as scans leave it, in the median."""
    true = path_of(draw_trajectory(0.5, SETTINGS, np.random.default_rng(1)))
    errors_px, places = [], set()
    for seed in range(60):
        motion, off = nearly(true, np.random.default_rng(seed))
        error = motion.shift_at(angles_rad()) - true.shift_at(angles_rad())
        torch.testing.assert_close(translation(error), off, atol=0.02, rtol=0)
        errors_px.append(float(without_translation(error).square().mean().sqrt()))
        places.add(tuple(off.tolist()))
        assert off.tolist() == off.round().tolist()
    assert np.median(errors_px) == pytest.approx(TYPICAL_ERROR_PX, rel=0.35)
    assert max(errors_px) > 3 * TYPICAL_ERROR_PX
    assert len(places) > 10


def test_near_motions_are_learnt_from_where_a_separator_sees_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The truth lies where the motion puts it, and its detail is in focus there."""
    monkeypatch.setattr(
        findings,
        "separate_by_network",
        lambda blocks, _: Separation(blocks.clone(), torch.zeros_like(blocks)),
    )
    monkeypatch.setattr(findings, "TYPICAL_ERROR_PX", 0.01)
    near = replace(SETTINGS, motions="near", carried_share=0.0)
    found = find(block(), BLIND, near, np.random.default_rng(3))
    assert found is not None
    assert not found.views[REFOCUSED].any()
    detail = found.views[VIEWS.index("detail")].astype(float)
    top = np.unravel_index(found.still.argmax(), found.still.shape)
    assert detail[top] > 0.9 * detail.max()
    assert find(block(), BLIND, SETTINGS, np.random.default_rng(3)) is None


def test_a_separator_that_sees_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(blocks: Tensor, separator: Separator) -> Separation:
        return Separation(blocks, torch.zeros_like(blocks))

    monkeypatch.setattr(findings, "separate_by_network", nothing)
    monkeypatch.setattr(windows, "MOST_TRIES", 2)
    with pytest.raises(ProdmError, match="nothing moved in 2 blocks"):
        draw_finding([block()], BLIND, SETTINGS, seed=(0, 0))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProdmError, match="holds no findings"):
        load_kept(tmp_path, Finding)
