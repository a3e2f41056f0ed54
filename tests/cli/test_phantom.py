"""``prodm phantom`` writes scans that the readers read back, in all three layouts."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from prodm.anatomy.phantom import Phantom, PhantomSettings, make_phantom
from prodm.anatomy.plaques import PlaqueSettings
from prodm.cli import cli
from prodm.errors import ProdmError
from prodm.files.coca import list_patients, read_gated
from prodm.files.masks import read_mask
from prodm.files.scans import read_scan

SETTINGS = """
num_pixels = 200
gated_fraction = 1.0
gated_pixel_mm = [0.6, 0.6]
coverage_mm = [60.0, 60.0]
[plaques]
zero_calcium_fraction = 0.0
"""
SEED = 13


@pytest.fixture(scope="module")
def expected() -> Phantom:
    return make_phantom(
        SEED,
        PhantomSettings(
            num_pixels=200, gated_fraction=1.0, gated_pixel_mm=(0.6, 0.6),
            coverage_mm=(60.0, 60.0), plaques=PlaqueSettings(zero_calcium_fraction=0.0),
        ),
    )  # fmt: skip


def run(folder: Path, *arguments: str) -> Result:
    settings = folder / "small.toml"
    settings.write_text(SETTINGS)
    command = ["phantom", "-o", str(folder / "out"), "--settings", str(settings), *arguments]
    return CliRunner().invoke(cli, command, catch_exceptions=False)


def test_nifti_files_read_back(tmp_path: Path, expected: Phantom) -> None:
    result = run(tmp_path, "--count", "1", "--seed", str(SEED), "--json")
    assert result.exit_code == 0
    out = tmp_path / "out"
    scan = read_scan(out / "phantom-00013.nii.gz")
    np.testing.assert_array_equal(scan.volume.hu, expected.still.hu)
    labels = read_mask(out / "phantom-00013_calcium.nii.gz", scan.volume.grid)
    np.testing.assert_array_equal(labels, expected.calcium)
    heart = read_mask(out / "phantom-00013_heart.nii.gz", scan.volume.grid)
    np.testing.assert_array_equal(heart > 0, expected.heart)
    truth = json.loads((out / "phantom-00013.json").read_text())
    assert truth == json.loads(result.stdout)["phantoms"][0]
    assert len(truth["plaques"]) == len(expected.plaques)
    assert truth["score"]["agatston"] > 0
    run_json = json.loads((out / "run.json").read_text())
    assert run_json["settings"]["phantom"]["num_pixels"] == 200


def test_a_dicom_series_reads_back_with_its_mask(tmp_path: Path, expected: Phantom) -> None:
    assert run(tmp_path, "--count", "1", "--seed", str(SEED), "--layout", "dicom").exit_code == 0
    scan = read_scan(tmp_path / "out" / "phantom-00013")
    np.testing.assert_array_equal(scan.volume.hu, expected.still.hu)
    labels = read_mask(tmp_path / "out" / "phantom-00013_calcium.nii.gz", scan.volume.grid)
    np.testing.assert_array_equal(labels, expected.calcium)


def test_a_coca_tree_reads_back_to_the_same_masks(tmp_path: Path, expected: Phantom) -> None:
    assert run(tmp_path, "--count", "1", "--seed", str(SEED), "--layout", "coca").exit_code == 0
    (patient,) = list_patients(tmp_path / "out")
    scan, labels = read_gated(patient)
    assert patient.id == str(SEED)
    np.testing.assert_array_equal(scan.volume.hu, expected.still.hu)
    np.testing.assert_array_equal(labels, expected.calcium)


def test_workers_make_no_difference(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    first = run(one, "--count", "2", "--json")
    second = run(two, "--count", "2", "--json", "--workers", "2")
    assert first.stdout == second.stdout


def test_an_existing_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    with pytest.raises(ProdmError, match="exists already"):
        run(tmp_path, "--count", "1")
    assert (tmp_path / "out" / "mine.txt").read_text() == "keep"


def test_an_unknown_setting_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    settings = tmp_path / "bad.toml"
    settings.write_text("num_pixel = 64\n")
    command = ["phantom", "-o", str(tmp_path / "out"), "--settings", str(settings)]
    with pytest.raises(ProdmError, match="did you mean 'num_pixels'"):
        CliRunner().invoke(cli, command, catch_exceptions=False)
