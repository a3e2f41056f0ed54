"""``prodm coca`` names what is usable, with both scores, and never stops at a bad patient."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from prodm.cli import cli
from prodm.errors import ProdmError
from prodm.files.coca_writer import write_gated, write_nongated, write_sheet
from prodm.volume import Grid, Volume

KEYS = [
    "id",
    "gated",
    "usable",
    "problem",
    "slices",
    "spacing_mm",
    "agatston_rois",
    "agatston",
    "per_vessel",
    "sheet_total",
    "notes",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Gated 2 with two lesions, gated 10 without annotation, and a non-gated scan."""
    hu = np.full((4, 16, 16), 40, dtype=np.int16)
    hu[1, 3:5, 3:5] = 250
    hu[2, 8, 8:14] = 410
    hu[2, 12, 2] = 500  # a speck of 0.25 mm2
    labels = np.where(hu >= 130, 1, 0).astype(np.uint8)
    labels[2][labels[2] > 0] = 3
    volume = Volume(hu, Grid(hu.shape, (3.0, 0.5, 0.5)))
    write_gated(tmp_path, "2", volume, labels)
    write_gated(tmp_path, "10", volume, labels)
    (tmp_path / "Gated_release_final" / "calcium_xml" / "10.xml").unlink()
    write_nongated(tmp_path, "3", volume)
    write_sheet(tmp_path, {"3A": (0, 1, 2, 3, 6)})
    return tmp_path


def patients(*arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(cli, ["coca", *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    found: list[dict[str, Any]] = json.loads(result.stdout)["patients"]
    return found


def test_json_holds_both_scores_and_every_problem(root: Path) -> None:
    """LAD 4 x 0.25 mm2 x 2; RCA 6 x 0.25 mm2 x 4; the speck counts in the ROI fields alone."""
    usable, unknown, nongated = patients(str(root))
    assert list(usable) == KEYS
    assert usable == {
        "id": "2",
        "gated": True,
        "usable": True,
        "problem": None,
        "slices": 4,
        "spacing_mm": [3.0, 0.5, 0.5],
        "agatston_rois": pytest.approx(2 + 6 + 1),
        "agatston": pytest.approx(2 + 6),
        "per_vessel": {"LAD": pytest.approx(2), "RCA": pytest.approx(6)},
        "sheet_total": None,
        "notes": [],
    }
    assert unknown["problem"].startswith("no annotation")
    assert unknown["agatston"] is None
    assert nongated["sheet_total"] == 6
    assert not nongated["gated"]


def test_without_scores_no_pixel_is_read_and_the_score_stays_open(root: Path) -> None:
    usable = patients(str(root), "--no-scores")[0]
    assert usable["agatston"] is None
    assert usable["agatston_rois"] == pytest.approx(9)


def test_the_user_may_take_a_missing_annotation_for_zero(root: Path) -> None:
    decided = patients(str(root), "--missing-xml-is-zero")[1]
    assert decided["usable"]
    assert decided["agatston"] == 0


def test_the_table_is_for_people_and_the_summary_goes_to_standard_error(root: Path) -> None:
    result = CliRunner().invoke(cli, ["coca", str(root)], catch_exceptions=False)
    lines = result.stdout.splitlines()
    assert lines[0].split()[:4] == ["id", "kind", "usable", "slices"]
    assert lines[1].split()[:4] == ["2", "gated", "yes", "4"]
    assert "no annotation" in lines[2]
    assert result.stderr == "usable: 1 of 2 gated, 1 of 1 non-gated\n"


def test_another_folder_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ProdmError, match="is no COCA folder"):
        CliRunner().invoke(cli, ["coca", str(tmp_path)], catch_exceptions=False)
    command = [sys.executable, "-m", "prodm", "coca", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("prodm: ")
    assert len(result.stderr.splitlines()) == 1


def test_torch_is_not_loaded(root: Path) -> None:
    code = (
        "import sys; from prodm.cli import cli\n"
        f"cli(['coca', {str(root)!r}], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
