"""``prodm correct`` turns a scan into results that are whole, honest and the same each time."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray

from prodm.agatston import score
from prodm.cli import cli
from prodm.errors import ProdmError
from prodm.files.masks import read_mask
from prodm.files.nifti import write_nifti, write_nifti_mask, write_nrrd
from prodm.files.scans import read_scan
from prodm.files.synthetic import write_ct_series
from prodm.model.baselines import ModelSettings, build_network
from prodm.model.bridge import BrownianBridge
from prodm.model.checkpoint import save_checkpoint
from prodm.model.network import NetworkSettings
from prodm.volume import Grid, Volume

SHAPE = (12, 96, 96)
GRID = Grid(SHAPE, (3.0, 0.7, 0.7), (-30.0, -20.0, 5.0))
HEART = np.zeros(SHAPE, bool)
HEART[1:-1, 10:86, 10:86] = True
TINY = NetworkSettings(
    channels=(8, 8), attention=(False, False), num_res_blocks=1, num_head_channels=8,
    norm_groups=8, fold=2,
)  # fmt: skip
Run = Callable[..., dict[str, Any]]


def chest(blood_hu: float = 40.0, lesion_hu: float = 350.0) -> Volume:
    hu = np.full(SHAPE, -850.0)
    hu[HEART] = blood_hu
    hu += np.random.default_rng(0).normal(0, 6, SHAPE)
    hu[5:7, 40:43, 50:54] = lesion_hu
    hu[4:6, 60:62, 25:28] = 0.6 * lesion_hu
    hu[:, 2:6, 20:80] = 700  # a rib
    return Volume(np.rint(hu).astype(np.int16), GRID)


@pytest.fixture
def dicom(tmp_path: Path) -> Path:
    write_ct_series(tmp_path / "scan", chest(), "made up")
    return tmp_path / "scan"


@pytest.fixture
def region(tmp_path: Path) -> Path:
    path = tmp_path / "region.nii.gz"
    write_nifti_mask(path, HEART, GRID)
    return path


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny network whose zero layers were woken, so that it changes images."""
    settings = ModelSettings(network=TINY, bridge=BrownianBridge(1000, 0.04))
    state = build_network(settings, seed=0).state_dict()
    generator = torch.Generator().manual_seed(2)
    for name, value in state.items():
        if value.ndim > 1 and not value.any():
            state[name] = 0.02 * torch.randn(value.shape, generator=generator)
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_checkpoint(path, state, settings, {})
    return path


@pytest.fixture
def run(weights: Path) -> Run:
    """Return a function that runs the command with the tiny network and gives its JSON."""

    def call(*arguments: object, method: str = "network") -> dict[str, Any]:
        how = ["--method", method, "--steps", "2", "--samples", "3", "--json"]
        how += ["--weights", str(weights)] if method == "network" else []
        result = CliRunner().invoke(cli, ["correct", *map(str, arguments), *how])
        if result.exception is not None:
            raise result.exception
        content: dict[str, Any] = json.loads(result.stdout)
        return content

    return call


def stored_values(folder: Path) -> NDArray[Any]:
    datasets = [pydicom.dcmread(path) for path in sorted(folder.iterdir())]
    return np.stack([dataset.pixel_array for dataset in datasets])


def test_a_dicom_scan_becomes_a_series_annotations_a_result_and_a_report(
    run: Run, dicom: Path, region: Path, tmp_path: Path
) -> None:
    content = run(dicom, "-o", tmp_path / "out", "--region", region)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [
        "corrected", "lesions-after.dcm", "lesions-before.dcm", "report.html", "result.json",
        "run.json", "score.dcm",
    ]  # fmt: skip
    assert content == json.loads((tmp_path / "out" / "result.json").read_text())
    assert set(content) == {
        "scan", "series", "before", "after", "rois", "settings", "model", "seconds", "warnings",
    }  # fmt: skip

    before, after = read_scan(dicom), read_scan(tmp_path / "out" / "corrected")
    assert after.volume.grid.mismatch(before.volume.grid) is None
    changed = after.volume.hu != before.volume.hu
    inside = np.zeros(SHAPE, bool)
    for roi in content["rois"]:
        inside[tuple(slice(*roi[axis]) for axis in ("slices", "rows", "columns"))] = True
    assert changed.any()
    assert not (changed & ~inside).any()
    assert score(after.volume, HEART).agatston == pytest.approx(content["after"]["agatston"])
    assert score(before.volume, HEART).agatston == pytest.approx(content["before"]["agatston"])

    lesions = read_mask(tmp_path / "out" / "lesions-after.dcm", before.volume.grid)
    assert (lesions > 0).sum() * 0.49 * 3 == pytest.approx(content["after"]["volume_mm3"])
    report = pydicom.dcmread(tmp_path / "out" / "score.dcm")
    said = report.to_json()
    assert "agatston-p5" in said
    assert "tiny" in said
    assert content["model"]["sha256"] in said


def test_the_derived_series_lies_beside_the_original_in_the_study(
    run: Run, dicom: Path, region: Path, tmp_path: Path
) -> None:
    run(dicom, "-o", tmp_path / "out", "--region", region)
    source = pydicom.dcmread(sorted(dicom.iterdir())[0])
    derived = pydicom.dcmread(tmp_path / "out" / "corrected" / "image-0001.dcm")
    assert derived.StudyInstanceUID == source.StudyInstanceUID
    assert derived.SeriesInstanceUID != source.SeriesInstanceUID
    assert "research use only" in derived.DerivationDescription
    assert list(derived.ImageType[:2]) == ["DERIVED", "SECONDARY"]


def test_an_identity_gives_the_stored_values_of_the_input(
    run: Run, dicom: Path, region: Path, tmp_path: Path
) -> None:
    content = run(dicom, "-o", tmp_path / "out", "--region", region, method="identity")
    assert content["after"]["agatston"] == content["before"]["agatston"] > 0
    np.testing.assert_array_equal(
        stored_values(tmp_path / "out" / "corrected"), stored_values(dicom)
    )


@pytest.mark.parametrize("name", ["scan.nii", "scan.nii.gz", "scan.nrrd"])
def test_files_come_back_in_their_own_format_bit_for_bit(
    run: Run, region: Path, tmp_path: Path, name: str
) -> None:
    hu = chest().hu.copy()
    hu[:, -2:] = -3024  # padding, which is read as air
    write = write_nrrd if name.endswith(".nrrd") else write_nifti
    write(tmp_path / name, Volume(hu, GRID))
    run(tmp_path / name, "-o", tmp_path / "out", "--region", region, method="identity")
    written = tmp_path / "out" / name.replace("scan", "corrected")
    write(tmp_path / f"again-{name}", Volume(hu, GRID))
    assert written.read_bytes() == (tmp_path / f"again-{name}").read_bytes()
    assert read_mask(tmp_path / "out" / "lesions-before.nii.gz", GRID).any()


def test_a_zip_of_a_scan_is_corrected(run: Run, dicom: Path, region: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "scan.zip", "w") as archive:
        for path in dicom.iterdir():
            archive.write(path, path.name)
    run(tmp_path / "scan.zip", "-o", tmp_path / "out", "--region", region, method="identity")
    np.testing.assert_array_equal(
        stored_values(tmp_path / "out" / "corrected"), stored_values(dicom)
    )


def test_the_same_seed_gives_the_same_bytes(
    run: Run, dicom: Path, region: Path, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        run(dicom, "-o", tmp_path / name, "--region", region, "--seed", "4")
    for path in sorted((tmp_path / "first").rglob("*")):
        if path.is_dir() or path.name in ("run.json", "result.json"):  # these hold times
            continue
        twin = tmp_path / "second" / path.relative_to(tmp_path / "first")
        assert path.read_bytes() == twin.read_bytes(), path.name


def test_a_scan_without_calcium_says_that_it_is_unchanged(
    run: Run, region: Path, tmp_path: Path
) -> None:
    write_ct_series(tmp_path / "scan", chest(lesion_hu=45.0), "made up")
    content = run(tmp_path / "scan", "-o", tmp_path / "out", "--region", region)
    assert content["rois"] == []
    assert "so the scan is unchanged" in content["warnings"][-1]
    np.testing.assert_array_equal(
        stored_values(tmp_path / "out" / "corrected"), stored_values(tmp_path / "scan")
    )


def test_the_table_for_people_names_score_interval_and_report(
    weights: Path, dicom: Path, region: Path, tmp_path: Path
) -> None:
    arguments = ["correct", str(dicom), "-o", str(tmp_path / "out"), "--region", str(region),
                 "--weights", str(weights), "--steps", "1", "--samples", "2"]  # fmt: skip
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert "90 % interval" in result.stdout
    assert "probability of grades" in result.stdout
    assert "report.html" in result.stdout
    assert "note:" in result.stderr


def refuse(run: Run, match: str, *arguments: object, method: str = "identity") -> None:
    with pytest.raises(ProdmError, match=match):
        run(*arguments, method=method)


def test_each_refusal_has_its_sentence_and_leaves_nothing(
    run: Run, region: Path, tmp_path: Path
) -> None:
    out = tmp_path / "results" / "out"

    def scan(name: str, volume: Volume) -> Path:
        write_nifti(tmp_path / f"{name}.nii", volume)
        write_nifti_mask(tmp_path / f"{name}-mask.nii", np.ones(volume.shape), volume.grid)
        return tmp_path / f"{name}.nii"

    still = ("-o", out, "--region", region)
    refuse(run, r"contrast-enhanced \(median 180 HU.*--force", scan("a", chest(180.0)), *still)
    refuse(run, "heart was not found", scan("b", chest()), "-o", out)
    wide = Volume(chest().hu, Grid(SHAPE, (9.0, 0.7, 0.7)))
    refuse(run, "slices must be 0.4 to 6 mm apart, got 9 mm", scan("c", wide), "-o", out)
    positive = Volume(chest().hu + np.int16(1024), GRID)
    refuse(run, "convert the scan to HU", scan("d", positive), *still)
    few = chest().crop((slice(4, 6), slice(None), slice(None)))
    arguments = (scan("e", few), "-o", out, "--region", tmp_path / "e-mask.nii")
    refuse(run, "looks at 3 slices together, and this scan has 2", *arguments, method="network")
    write_nifti_mask(tmp_path / "empty.nii", np.zeros(SHAPE, np.uint8), GRID)
    empty = ("-o", out, "--region", tmp_path / "empty.nii")
    refuse(run, "region .* is empty", scan("f", chest()), *empty)
    assert not list((tmp_path / "results").iterdir())

    run(*arguments, "--force")
    content = json.loads((out / "result.json").read_text())
    assert any(
        "only because of --force: the correction looks at 3" in w for w in content["warnings"]
    )


def test_what_is_not_ct_is_refused(run: Run, dicom: Path, region: Path, tmp_path: Path) -> None:
    for path in dicom.iterdir():
        dataset = pydicom.dcmread(path)
        dataset.Modality = "MR"
        dataset.SOPClassUID = "1.2.840.10008.5.1.4.1.1.4"
        dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
        dataset.save_as(path)
    refuse(run, "CT", dicom, "-o", tmp_path / "out", "--region", region)


def test_a_noted_contrast_agent_that_nothing_shows_is_a_note(
    run: Run, dicom: Path, region: Path, tmp_path: Path
) -> None:
    for path in dicom.iterdir():
        dataset = pydicom.dcmread(path)
        dataset.ContrastBolusAgent = "IOHEXOL"
        dataset.save_as(path)
    content = run(dicom, "-o", tmp_path / "out", "--region", region, method="identity")
    assert any("the blood does not show it" in warning for warning in content["warnings"])


def test_places_that_must_not_be_written_are_refused(
    run: Run, dicom: Path, region: Path, tmp_path: Path
) -> None:
    refuse(run, "must lie outside the folder of the scan", dicom, "-o", dicom / "out")
    refuse(run, "there is no scan", tmp_path / "none", "-o", tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    still = (dicom, "-o", tmp_path / "out", "--region", region)
    refuse(run, "exists already; choose another place or add --overwrite", *still)
    assert (tmp_path / "out" / "mine.txt").read_text() == "keep"
    run(*still, "--overwrite", method="identity")
    assert (tmp_path / "out" / "result.json").exists()


def test_weights_that_are_none_are_refused(dicom: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"not weights")
    arguments = ["correct", str(dicom), "-o", str(tmp_path / "out"), "--weights"]
    result = CliRunner().invoke(cli, [*arguments, str(tmp_path / "bad.safetensors")])
    assert isinstance(result.exception, ProdmError)
    assert "is not a safetensors file" in str(result.exception)


@pytest.fixture
def cohort(tmp_path: Path, dicom: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two good scans and a damaged one; every heart is where ours is."""
    from prodm.anatomy import heart

    def found(volume: Volume) -> heart.HeartRegion:
        return heart.HeartRegion(HEART, "made up")

    monkeypatch.setattr(heart, "find_heart", found)
    root = tmp_path / "cohort"
    shutil.copytree(dicom, root / "a" / "scan")
    write_nifti(root / "b.nii.gz", chest())
    (root / "c").mkdir()
    for path in sorted(dicom.iterdir())[::3]:  # slices are missing
        shutil.copy(path, root / "c" / path.name)
    (root / "c" / sorted(path.name for path in (root / "c").iterdir())[1]).unlink()
    return root


def test_a_folder_of_scans_is_corrected_once(run: Run, cohort: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    first = run(cohort, "-o", out, "--recursive", method="identity")["scans"]
    assert [row["scan"] for row in first] == ["a/scan", "b.nii.gz", "c"]
    assert [bool(row.get("problem")) for row in first] == [False, False, True]
    with (out / "summary.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["folder"] for row in rows] == ["a__scan", "b.nii.gz", "c"]
    assert float(rows[0]["agatston_after"]) == float(rows[0]["agatston_before"]) > 0
    assert rows[2]["problem"]
    assert sorted(path.name for path in out.iterdir()) == ["a__scan", "b.nii.gz", "summary.csv"]

    stamp = (out / "a__scan" / "result.json").stat().st_mtime_ns
    again = run(cohort, "-o", out, "--recursive", method="identity")["scans"]
    assert (out / "a__scan" / "result.json").stat().st_mtime_ns == stamp
    assert again == first

    other = run(cohort, "-o", out, "--recursive", "--rule", "osirix", "--seed", "3", "--overwrite")
    assert other["scans"][0]["agatston_after"] != first[0]["agatston_after"]
    with pytest.raises(ProdmError, match="none of the 3 scans could be corrected"):
        run(cohort, "-o", out, "--recursive", method="identity")
    assert "other settings or weights" in (out / "summary.csv").read_text()


def test_ctrl_c_leaves_nothing_half_written(
    weights: Path, dicom: Path, region: Path, tmp_path: Path
) -> None:
    out = tmp_path / "results" / "out"
    arguments = ["-m", "prodm", "correct", str(dicom), "-o", str(out), "--region", str(region),
                 "--weights", str(weights), "--steps", "200", "--samples", "400"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 120
        while not list(out.parent.glob(".out.partial-*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(2.0)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "interrupted; nothing half-written was left behind" in said
    assert list(out.parent.iterdir()) == []


def test_help_is_quick_and_shows_an_example() -> None:
    code = (
        "import sys; from prodm.cli import cli; cli(['correct', '--help'], standalone_mode=False);"
        "print([n for n in ('torch', 'numpy', 'monai') if n in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "Example: prodm correct scans/0042 -o corrected/0042" in re.sub(r"\s+", " ", answer)
    assert answer.strip().endswith("[]")
