"""The demo is fair, does what the commands do, and says what came of it, good or bad."""

import json
import multiprocessing
import os
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from prodm import agatston
from prodm.anatomy.phantom import Phantom, PhantomSettings, make_phantom
from prodm.anatomy.plaques import PlaqueSettings
from prodm.calcium import GRADES
from prodm.cli import cli
from prodm.correction import Identity
from prodm.demo import CASES, Case, DemoSettings, Outcome, next_commands, run_case, run_demo
from prodm.demo.output import interval_text, report_html, summary, summary_sentence, write_demo
from prodm.demo.patients import FIRST_SEED, move_calcium
from prodm.demo.pictures import row_picture
from prodm.demo.workers import KEEP_MEMORY, _pool
from prodm.errors import ProdmError
from prodm.files.scans import read_scan

SMALL = PhantomSettings(
    num_pixels=200,
    gated_fraction=1.0,
    gated_pixel_mm=(0.6, 0.6),
    coverage_mm=(60.0, 60.0),
    plaques=PlaqueSettings(zero_calcium_fraction=0.0),
)
CASE = Case(13, "severe", "oscillation-y-medium")
SETTINGS = DemoSettings(cases=(CASE,), method="identity", workers=1, phantom=SMALL)


@pytest.fixture(scope="module")
def phantom() -> Phantom:
    return make_phantom(CASE.seed, SMALL)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run_case(CASE, SETTINGS, Identity())


def grade_of(case: Case) -> str:
    made = make_phantom(case.seed)
    return agatston.score(made.still, made.heart).grade


def test_the_patients_begin_with_the_first_seed_and_hold_each_grade_once() -> None:
    assert min(case.seed for case in CASES) == FIRST_SEED
    assert tuple(case.grade for case in CASES) == GRADES


def test_the_motions_are_given_in_turn() -> None:
    turns = zip(
        cycle(("translation", "oscillation", "piecewise", "jitter")),
        cycle("xy"),
        cycle(("small", "medium", "large")),
        range(5),
        strict=False,
    )
    names = [
        "-".join((family, size) if family == "jitter" else (family, axis, size))
        for family, axis, size, _ in turns
    ]
    assert [case.profile for case in sorted(CASES, key=lambda case: case.seed)] == names


def test_the_first_patient_has_the_grade_that_chose_it() -> None:
    case = min(CASES, key=lambda case: case.seed)
    assert grade_of(case) == case.grade


@pytest.mark.slow
def test_every_patient_is_the_first_of_its_grade() -> None:
    first: dict[str, int] = {}
    for seed in range(FIRST_SEED, max(case.seed for case in CASES) + 1):
        made = make_phantom(seed)
        score, coronary = (agatston.score(made.still, m) for m in (made.heart, made.calcium))
        if coronary.agatston >= 0.9 * score.agatston:
            first.setdefault(score.grade, seed)
    assert first == {case.grade: case.seed for case in CASES}


def test_the_calcium_moves_as_prodm_simulate_moves_it(tmp_path: Path, phantom: Phantom) -> None:
    from prodm.files.nifti import write_nifti, write_nifti_mask

    write_nifti(tmp_path / "still.nii.gz", phantom.still)
    write_nifti_mask(tmp_path / "calcium.nii.gz", phantom.calcium, phantom.still.grid)
    arguments = ["--calcium", tmp_path / "calcium.nii.gz", "-o", tmp_path / "moved"]
    arguments += ["--profile", CASE.profile, "--seed", CASE.seed]
    command = ["simulate", tmp_path / "still.nii.gz", *arguments]
    result = CliRunner().invoke(cli, [str(part) for part in command], catch_exceptions=False)
    assert result.exit_code == 0
    moving, _ = move_calcium(phantom, CASE)
    simulated = read_scan(tmp_path / "moved" / "moving.nii.gz").volume
    np.testing.assert_array_equal(moving.hu, simulated.hu)


def test_a_patient_without_calcium_does_not_move(phantom: Phantom) -> None:
    free = replace(phantom, calcium=np.zeros_like(phantom.calcium))
    moving, _ = move_calcium(free, CASE)
    np.testing.assert_array_equal(moving.hu, phantom.still.hu)


def test_scores_are_those_of_the_three_scans_inside_the_heart(
    phantom: Phantom, outcome: Outcome
) -> None:
    moving, trajectory = move_calcium(phantom, CASE)
    assert outcome.still == agatston.score(phantom.still, phantom.heart).agatston
    assert outcome.moving == agatston.score(moving, phantom.heart).agatston
    assert outcome.corrected == outcome.moving != outcome.still  # by a method that changes nothing
    assert outcome.verdict == "same"
    path_mm = trajectory.displacement(trajectory.times)
    assert outcome.largest_shift_mm == pytest.approx(np.sqrt((path_mm**2).sum(axis=1)).max())


def test_views_show_the_largest_coronary_lesion_of_the_still_scan(
    phantom: Phantom, outcome: Outcome
) -> None:
    lesions = agatston.score(phantom.still, phantom.calcium).lesions
    largest = max(lesions, key=lambda lesion: lesion.agatston)
    assert outcome.slice_index == largest.slice_index
    assert outcome.views.shape[1] * outcome.view_pixel_mm == pytest.approx(44, abs=0.6)
    assert outcome.views[2].max() >= largest.peak_hu
    np.testing.assert_array_equal(outcome.views[0], outcome.views[1])


def test_lines_mark_only_what_counts(outcome: Outcome) -> None:
    bone = replace(outcome, heart=np.zeros_like(outcome.heart))
    assert row_picture(bone) != row_picture(outcome)
    assert outcome.heart.shape == outcome.views.shape[1:]


def test_a_correction_that_makes_it_worse_is_told_as_it_is(outcome: Outcome) -> None:
    worse = replace(outcome, still=100.0, moving=90.0, corrected=150.0, interval_90=(120.0, 160.0))
    better = replace(outcome, still=100.0, moving=50.0, corrected=104.0, interval_90=(95.0, 110.0))
    same = replace(outcome, still=0.0, moving=0.0, corrected=0.0, interval_90=None, num_blocks=0)
    assert [x.verdict for x in (worse, better, same)] == ["larger", "smaller", "same"]
    assert [x.held for x in (worse, better, same)] == [False, True, None]
    assert [interval_text(x) for x in (worse, same)] == ["120 to 160", "unchanged"]
    page = report_html([worse, better, same], SETTINGS)
    assert '<td class="larger">larger</td>' in page
    content = summary([worse, better, same])
    assert content["mean_absolute_error_moving"] == pytest.approx((10 + 50 + 0) / 3)
    assert content["mean_absolute_error_corrected"] == pytest.approx((50 + 4 + 0) / 3)
    assert content["right_grades_moving"] == 3  # 100 and 90 and 50 are mild, 0 is none
    assert content["right_grades_corrected"] == 1  # 150 and 104 are moderate
    assert (content["intervals"], content["intervals_that_hold_truth"]) == (2, 1)
    assert summary_sentence([worse, better, same]).endswith("The truth lies in 1 of 2 intervals.")


def test_the_folder_holds_a_page_complete_in_itself_and_a_picture(
    tmp_path: Path, outcome: Outcome
) -> None:
    outcomes = [replace(outcome, case=case, interval_90=(1.0, 2.0)) for case in CASES]
    content = write_demo(tmp_path, outcomes, SETTINGS)
    names = {"report.html", "demo.png", "demo.json", "run.json"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert json.loads((tmp_path / "demo.json").read_text()) == content
    assert [entry["seed"] for entry in content["patients"]] == [case.seed for case in CASES]
    page = (tmp_path / "report.html").read_text()
    assert page.count('src="data:image/png;base64,') == page.count("<img") == 5
    assert "http" not in page
    assert "Research use only" in page
    assert "1 to 2" in page
    with Image.open(tmp_path / "demo.png") as picture:
        assert 1000 < picture.width <= 1600
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["method"] == "identity"


def test_the_next_commands_are_three_that_exist() -> None:
    commands = next_commands(DemoSettings(weights=Path("w.safetensors")))
    assert [command.split()[:2] for command in commands] == [
        ["prodm", "phantom"], ["prodm", "simulate"], ["prodm", "correct"],
    ]  # fmt: skip
    for command in commands:
        name, *arguments = command.split()[1:]
        cli.commands[name].make_context(name, arguments)  # refuses what it does not know
    assert commands[2].endswith("--weights w.safetensors")
    assert "--tissue still" in commands[2]  # as in the demo, which was simulated
    assert f"--seed {FIRST_SEED}" in commands[0]


def test_two_processes_give_what_one_gives(outcome: Outcome) -> None:
    seen: list[int] = []
    second = Case(14, "none", "jitter-large")
    settings = replace(SETTINGS, cases=(second, CASE), workers=2)
    other, twin = run_demo(settings, lambda done, total: seen.append(done))
    assert other.case == second
    assert (twin.still, twin.moving) == (outcome.still, outcome.moving)
    np.testing.assert_array_equal(twin.views, outcome.views)
    assert seen == sorted(seen)
    assert seen[-1] <= 100


def test_what_goes_wrong_in_a_worker_is_said_and_no_process_stays() -> None:
    settings = replace(SETTINGS, cases=(CASE,), method="magic", workers=2)
    with pytest.raises(ProdmError, match="method must be one of"):
        run_demo(settings)
    assert not multiprocessing.active_children()


def test_processes_keep_the_memory_that_they_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not where the user asks for something else."""
    first, second = KEEP_MEMORY
    monkeypatch.setenv(first, "1000000")
    monkeypatch.delenv(second, raising=False)
    context = multiprocessing.get_context("spawn")
    with _pool(1, context, context.Queue()) as pool:
        found = [pool.submit(os.getenv, name).result() for name in (first, second)]
    assert found == ["1000000", KEEP_MEMORY[second]]
