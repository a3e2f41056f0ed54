"""``prodm simulate`` and ``prodm bench simulate`` at the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from scipy import ndimage

from prodm.cli import cli
from prodm.errors import ProdmError
from prodm.files.nifti import write_nifti, write_nifti_mask
from prodm.files.scans import read_scan
from prodm.files.synthetic import write_ct_series
from prodm.motion.trajectory import Trajectory
from prodm.volume import Grid, Volume

GRID = Grid((6, 64, 64), (3.0, 0.5, 0.5), (-16.0, -16.0, 100.0))


def make_scan() -> tuple[Volume, NDArray[np.uint8]]:
    """Tissue with grain and one plaque of about 5 x 3 mm in two slices."""
    white = np.random.default_rng(0).normal(size=GRID.shape)
    grain = ndimage.gaussian_filter(white, (0, 0.9, 0.9))
    calcium = np.zeros(GRID.shape)
    calcium[2:4, 30:35, 28:37] = 600
    blurred = ndimage.gaussian_filter(calcium, (0, 1.1, 1.1))
    hu = 40 + 10 * grain / grain.std() + blurred
    return Volume(np.rint(hu).astype(np.int16), GRID), (blurred > 90).astype(np.uint8)


@pytest.fixture
def nifti(tmp_path: Path) -> tuple[str, str]:
    volume, mask = make_scan()
    write_nifti(tmp_path / "still.nii.gz", volume)
    write_nifti_mask(tmp_path / "calcium.nii.gz", mask, GRID)
    return str(tmp_path / "still.nii.gz"), str(tmp_path / "calcium.nii.gz")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", *arguments], catch_exceptions=False)


def test_nifti_in_nifti_out_with_all_that_belongs_to_it(
    nifti: tuple[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "moved"
    answer = run(
        nifti[0], "--calcium", nifti[1], "-o", str(out), "--profile", "jitter-large", "--json"
    )
    assert answer.exit_code == 0
    result = json.loads(answer.stdout)
    assert result["profile"] == "jitter-large"
    assert result["agatston_still"] > 0
    names = {path.name for path in out.iterdir()}
    assert names == {"moving.nii.gz", "trajectory.json", "before-after.png", "run.json"}
    moving = read_scan(out / "moving.nii.gz").volume
    still = read_scan(Path(nifti[0])).volume
    assert still.grid.mismatch(moving.grid) is None
    assert moving.hu.dtype == np.int16
    assert moving.hu.max() < still.hu.max()
    trajectory = Trajectory.from_json((out / "trajectory.json").read_text())
    assert trajectory.profile == "jitter-large"
    assert json.loads((out / "run.json").read_text())["settings"]["seed"] == 0


def test_dicom_in_dicom_out(nifti: tuple[str, str], tmp_path: Path) -> None:
    volume, _ = make_scan()
    write_ct_series(tmp_path / "series", volume, patient="phantom")
    out = tmp_path / "moved"
    run(str(tmp_path / "series"), "--calcium", nifti[1], "-o", str(out), "--angles", "180")
    moved = read_scan(out / "moving")
    assert moved.volume.grid.mismatch(volume.grid) is None
    assert moved.series_uid != read_scan(tmp_path / "series").series_uid
    assert not np.array_equal(moved.volume.hu, volume.hu)


def test_a_written_trajectory_gives_the_same_scan_again(
    nifti: tuple[str, str], tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    common = (nifti[0], "--calcium", nifti[1], "--seed", "7")
    run(*common, "-o", str(first), "--start", "random", "--span", "360", "--centred")
    run(*common, "-o", str(second), "--trajectory", str(first / "trajectory.json"))
    hu = [read_scan(folder / "moving.nii.gz").volume.hu for folder in (first, second)]
    assert np.array_equal(hu[0], hu[1])


def test_both_engines_and_backgrounds_run(nifti: tuple[str, str], tmp_path: Path) -> None:
    for number, options in enumerate(
        (("--engine", "phase"), ("--background", "reprojected", "--filter", "hann"))
    ):
        out = str(tmp_path / f"out{number}")
        assert run(nifti[0], "--calcium", nifti[1], "-o", out, *options).exit_code == 0


def test_the_profiles_are_drawn(tmp_path: Path) -> None:
    run("--show-profiles", str(tmp_path / "profiles.png"))
    assert (tmp_path / "profiles.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_missing_is_a_usage_error() -> None:
    answer = run("scan.nii.gz")
    assert answer.exit_code == 2
    assert "give SCAN, --calcium MASK and -o DIR" in answer.stderr


def test_bad_input_leaves_nothing_behind(nifti: tuple[str, str], tmp_path: Path) -> None:
    empty, other = tmp_path / "empty.nii.gz", tmp_path / "other.nii.gz"
    write_nifti_mask(empty, np.zeros(GRID.shape, np.uint8), GRID)
    shifted = Grid(GRID.shape, GRID.spacing_mm, (0.0, 0.0, 0.0))
    write_nifti_mask(other, make_scan()[1], shifted)
    out = tmp_path / "out"
    for arguments, message in (
        (("--calcium", str(empty)), "empty"),
        (("--calcium", str(other)), "grid|away"),
        (("--calcium", nifti[1], "--profile", "jump"), "no motion profile 'jump'"),
        (("--calcium", nifti[1], "--start", "soon"), "degrees or `random`"),
        (("--calcium", nifti[1], "--trajectory", nifti[0]), "trajectory"),
    ):
        with pytest.raises(ProdmError, match=message):
            run(nifti[0], "-o", str(out), *arguments)
        assert not out.exists()


def test_an_existing_result_is_kept_unless_told_otherwise(
    nifti: tuple[str, str], tmp_path: Path
) -> None:
    arguments = (nifti[0], "--calcium", nifti[1], "-o", str(tmp_path / "out"), "--angles", "90")
    run(*arguments)
    with pytest.raises(ProdmError, match="exists already"):
        run(*arguments)
    assert run(*arguments, "--overwrite").exit_code == 0


@pytest.mark.slow
def test_the_race_is_won_in_small(tmp_path: Path) -> None:
    arguments = ["bench", "simulate", "--angles", "180", "--size", "128", "--picture-angles", "90"]
    answer = CliRunner().invoke(
        cli, [*arguments, "--json", str(tmp_path / "bench.json")], catch_exceptions=False
    )
    assert answer.exit_code == 0
    result = json.loads((tmp_path / "bench.json").read_text())
    rows = {row["name"]: row["times_faster"] for row in result["whole_slices"]}
    assert rows["back-projection, prodm"] > 10
    assert {row["name"]: row["times_faster"] for row in result["block"]}["phase, prodm"] > 200
    for picture in result["pictures"]:
        assert picture["correlation"] >= 0.998
        assert picture["correlation_of_calcium"] >= 0.998
        assert picture["agatston_fast"] == pytest.approx(picture["agatston_literal"], rel=0.03)
