"""``prodm score`` says what the library says, for one scan or for a folder of them."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from prodm.calcium import Vessel
from prodm.cli import cli
from prodm.cli.score import RULE_NAMES
from prodm.cli.scored import VESSEL_NAMES
from prodm.errors import ProdmError
from prodm.files.masks import read_mask
from prodm.files.nifti import write_nifti, write_nifti_mask
from prodm.files.scans import read_scan
from prodm.files.synthetic import write_ct_series
from prodm.volume import Grid, Volume

GRID = Grid((6, 24, 24), (3.0, 0.5, 0.5), (-6.0, -6.0, 100.0))
HEAVY = (
    *("torch", "monai", "numba", "scipy", "pydicom", "skimage", "matplotlib", "numpy"),
    *("nibabel", "highdicom", "zarr", "rich"),
)


def make_scan() -> tuple[Volume, "np.typing.NDArray[np.uint8]"]:
    """LAD: 2 mm2 of 250 HU. RCA: 1 mm2 of 450 HU. A bone of 900 HU lies outside the mask."""
    hu = np.full(GRID.shape, 40, dtype=np.int16)
    hu[2, 4:6, 4:8] = 250
    hu[4, 16:18, 16:18] = 450
    hu[:, 20:, :] = 900
    labels = np.zeros(GRID.shape, dtype=np.uint8)
    labels[:, 2:10, 2:10] = Vessel.LAD
    labels[:, 14:19, 14:19] = Vessel.RCA
    return Volume(hu, GRID), labels


@pytest.fixture
def nifti(tmp_path: Path) -> tuple[str, str]:
    volume, labels = make_scan()
    write_nifti(tmp_path / "patient.nii.gz", volume)
    write_nifti_mask(tmp_path / "arteries.nii.gz", labels, GRID)
    return str(tmp_path / "patient.nii.gz"), str(tmp_path / "arteries.nii.gz")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["score", *arguments], catch_exceptions=False)


def run_json(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0
    content: dict[str, Any] = json.loads(result.stdout)
    return content


def test_json_is_the_contract_and_the_score_the_one_worked_by_hand(nifti: tuple[str, str]) -> None:
    scan, mask = nifti
    content = run_json(scan, "--region", mask, "--calibration", "0.001")
    assert content["agatston"] == pytest.approx(2 * 2 + 1 * 4)
    assert content["volume_mm3"] == pytest.approx(9.0)
    assert content["mass_mg"] == pytest.approx(0.001 * (250 * 6.0 + 450 * 3.0))
    assert content["grade"] == "minimal"
    assert content["per_vessel"] == {"LAD": pytest.approx(4.0), "RCA": pytest.approx(4.0)}
    assert content["region"]["source"] == "given"
    assert content["rule"]["name"] == "clinical"
    first = content["lesions"][0]
    assert first["slice_index"] == 2
    assert first["position_xyz_mm"] == pytest.approx([-3.25, -3.75, 106.0])
    assert set(content) == {
        *("agatston", "volume_mm3", "mass_mg", "grade", "rule", "region", "per_vessel", "lesions"),
    }


def test_people_get_a_table_with_total_vessels_and_lesions(nifti: tuple[str, str]) -> None:
    scan, mask = nifti
    text = run(scan, "--region", mask).stdout
    for words in ("8.0 (minimal)", "9.0 mm³", "LAD", "RCA", "needs --calibration", "clinical"):
        assert words in text


def test_each_part_of_a_rule_can_be_changed_and_the_result_says_so(
    nifti: tuple[str, str],
) -> None:
    scan, mask = nifti
    changed = run_json(scan, "--region", mask, "--threshold-hu", "300", "--min-area-mm2", "0")
    assert changed["agatston"] == pytest.approx(4.0)
    assert changed["rule"]["name"] == "clinical, changed"
    assert changed["rule"]["threshold_hu"] == 300
    edges = run_json(scan, "--region", mask, "--connectivity", "edge", "--thickness", "none")
    assert (edges["rule"]["connectivity"], edges["rule"]["thickness"]) == ("edge", "none")


def test_rules_that_need_more_of_the_scan_ask_for_it(nifti: tuple[str, str]) -> None:
    scan, mask = nifti
    with pytest.raises(ProdmError, match="--slice-thickness-mm"):
        run(scan, "--region", mask, "--rule", "ai-cac")
    given = run_json(scan, "--region", mask, "--rule", "ai-cac", "--slice-thickness-mm", "1.5")
    assert given["agatston"] == pytest.approx(4.0)
    with pytest.raises(ProdmError, match="--kvp"):
        run(scan, "--region", mask, "--rule", "calciumscoring-jl")
    assert run_json(scan, "--region", mask, "--rule", "calciumscoring-jl", "--kvp", "100")
    with pytest.raises(ProdmError, match="threshold from the tube voltage"):
        run(scan, "--region", mask, "--rule", "calciumscoring-jl", "--threshold-hu", "100")


def test_dicom_gives_its_own_voltage_and_takes_seg_and_sr(tmp_path: Path) -> None:
    volume, labels = make_scan()
    write_ct_series(tmp_path / "series", volume, "patient")
    write_nifti_mask(tmp_path / "arteries.nii.gz", labels, GRID)
    seg, sr = tmp_path / "lesions.dcm", tmp_path / "report.dcm"
    scan, mask = str(tmp_path / "series"), str(tmp_path / "arteries.nii.gz")
    content = run_json(scan, "--region", mask, "--seg", str(seg), "--sr", str(sr))
    assert content["agatston"] == pytest.approx(8.0)
    lesions = read_mask(seg, read_scan(tmp_path / "series").volume.grid)
    np.testing.assert_array_equal(lesions, np.where(volume.hu >= 130, labels, 0))
    assert sr.stat().st_size > 0
    with pytest.raises(ProdmError, match=r"exists already.*--overwrite"):
        run(scan, "--region", mask, "--seg", str(seg))
    assert run(scan, "--region", mask, "--seg", str(seg), "--overwrite").exit_code == 0
    free = run(scan, "--region", mask, "--threshold-hu", "1000", "--seg", str(tmp_path / "no.dcm"))
    assert "no SEG was written" in free.stderr
    assert not (tmp_path / "no.dcm").exists()


def test_seg_and_sr_are_refused_for_a_scan_that_is_not_dicom(
    nifti: tuple[str, str], tmp_path: Path
) -> None:
    scan, mask = nifti
    with pytest.raises(ProdmError, match="belong to a DICOM scan"):
        run(scan, "--region", mask, "--seg", str(tmp_path / "lesions.dcm"))


def test_without_a_region_and_without_a_heart_a_region_is_asked_for(
    nifti: tuple[str, str],
) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "prodm", "score", nifti[0]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert answer.stderr.startswith("prodm: the heart was not found")
    assert "--region" in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_a_found_region_is_said_to_be_found(
    nifti: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_the_whole_scan_is_heart(monkeypatch)
    result = run(nifti[0])
    assert "found by prodm, not given" in result.stderr
    assert "aorta or the valves inside it is counted" in result.stderr
    assert run_json(nifti[0])["region"]["source"] == "found"


def pretend_the_whole_scan_is_heart(monkeypatch: pytest.MonkeyPatch) -> None:
    from prodm.anatomy import heart

    def everything(volume: Volume) -> heart.HeartRegion:
        if volume.hu.max() < 0:
            raise ProdmError("the heart was not found: test; give its mask with --region")
        return heart.HeartRegion(np.ones(volume.shape, dtype=bool), "all of it")

    monkeypatch.setattr(heart, "find_heart", everything)


@pytest.fixture
def cohort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two good scans, one damaged file and one scan without a heart."""
    pretend_the_whole_scan_is_heart(monkeypatch)
    volume, _ = make_scan()
    root = tmp_path / "cohort"
    (root / "b").mkdir(parents=True)
    write_ct_series(root / "a", volume, "patient")
    write_nifti(root / "b" / "good.nii.gz", volume)
    write_nifti(root / "b" / "empty.nii.gz", volume.with_hu(np.full_like(volume.hu, -1000)))
    write_nifti(tmp_path / "whole.nii", volume)
    whole = (tmp_path / "whole.nii").read_bytes()
    (root / "b" / "cut.nii").write_bytes(whole[: len(whole) // 2])
    return root


def test_a_folder_is_scored_in_one_go_and_bad_scans_are_named(cohort: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    result = run(str(cohort), "--recursive", "--csv", str(out))
    assert result.exit_code == 0
    with out.open(encoding="utf-8", newline="") as file:
        rows = {row["scan"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"a", "b/good.nii.gz", "b/cut.nii", "b/empty.nii.gz"}
    assert rows["a"]["agatston"] == rows["b/good.nii.gz"]["agatston"] != ""
    assert rows["a"]["region"] == "found"
    assert rows["a"]["UNSPECIFIED"] == rows["a"]["agatston"]
    assert rows["b/cut.nii"]["agatston"] == ""
    assert rows["b/cut.nii"]["problem"]
    assert "--region" in rows["b/empty.nii.gz"]["problem"]


def test_a_folder_gives_json_with_one_entry_for_each_scan(cohort: Path) -> None:
    scans = run_json(str(cohort), "--recursive")["scans"]
    assert [("problem" in scan) for scan in scans] == [False, True, True, False]
    assert {scan["scan"] for scan in scans} >= {"a", "b/good.nii.gz"}


def test_nothing_to_score_is_an_error(cohort: Path, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ProdmError, match="there is no scan below"):
        run(str(tmp_path / "nothing"), "--recursive")
    for path in (cohort / "b" / "good.nii.gz", cohort / "b" / "empty.nii.gz"):
        path.unlink()
    with pytest.raises(ProdmError, match="none of the 1 scans could be scored"):
        run(str(cohort / "b"), "--recursive")


def test_options_for_one_scan_are_refused_for_many(cohort: Path) -> None:
    result = run(str(cohort), "--recursive", "--region", "mask.nii.gz")
    assert result.exit_code == 2
    assert "are for one scan" in result.stderr


def test_places_that_cannot_be_written_are_refused_before_the_work(
    nifti: tuple[str, str], tmp_path: Path
) -> None:
    scan, mask = nifti
    with pytest.raises(ProdmError, match="there is no folder"):
        run(scan, "--region", mask, "--csv", str(tmp_path / "no" / "scores.csv"))
    with pytest.raises(ProdmError, match="is a folder"):
        run(scan, "--region", mask, "--csv", str(tmp_path))
    (tmp_path / "scores.csv").write_text("mine")
    with pytest.raises(ProdmError, match="exists already"):
        run(scan, "--region", mask, "--csv", str(tmp_path / "scores.csv"))
    assert (tmp_path / "scores.csv").read_text() == "mine"


def test_the_choices_on_the_command_line_are_those_of_the_library() -> None:
    from prodm.agatston import RULES

    assert tuple(RULES) == RULE_NAMES
    assert tuple(vessel.name for vessel in Vessel) == VESSEL_NAMES


def modules_loaded_by(*arguments: str) -> set[str]:
    """Names of top-level modules after the command ran in a process of its own."""
    code = (
        "import sys\n"
        "from prodm.cli import cli\n"
        f"cli({list(arguments)!r}, standalone_mode=False)\n"
        "print('LOADED', *{name.split('.')[0] for name in sys.modules})\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(answer.stdout.split("LOADED ")[1].split())


def test_score_never_loads_torch(nifti: tuple[str, str]) -> None:
    scan, mask = nifti
    loaded = modules_loaded_by("score", scan, "--region", mask, "--json")
    assert "scipy" in loaded
    assert not loaded & {"torch", "monai", "numba", "matplotlib", "zarr"}


def test_finding_the_heart_never_loads_torch() -> None:
    code = "import sys, prodm.anatomy.heart; print('torch' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "False"


@pytest.mark.parametrize("arguments", [["--help"], ["score", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    assert not modules_loaded_by(*arguments) & set(HEAVY)


def test_help_shows_an_example() -> None:
    assert "Example: prodm score" in run("--help").stdout
