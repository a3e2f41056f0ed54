"""``prodm evaluate`` and ``prodm ablate`` as a user runs them."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from scipy import ndimage

from prodm.anatomy import heart
from prodm.cli import cli
from prodm.errors import ProdmError
from prodm.files.coca_writer import write_nongated, write_sheet
from prodm.pairs.store import Pairs
from prodm.volume import Grid, Volume

TINY = """
num_steps = 3
batch_size = 2
warmup_steps = 1
validation_jumps = 1
[model.network]
channels = [8, 8]
attention = [false, false]
num_res_blocks = 1
num_head_channels = 8
norm_groups = 8
fold = 4
[model.bridge]
noise_scale = 0.04
[model.sampling]
num_jumps = 2
[windows]
size = 32
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(
        cli, [str(argument) for argument in arguments], catch_exceptions=False
    )


def read_json(path: Path) -> Any:  # noqa: ANN401
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "someones.py").write_text(
        "import numpy as np\n"
        "def correct(block):\n"
        "    return np.where(block > 60, 3 * block, block)\n"
    )
    monkeypatch.chdir(tmp_path)
    return "someones:correct"


@pytest.fixture(scope="module")
def evaluated(
    pairs: Pairs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Result]]:
    """One evaluation with a named and an external method."""
    folder = tmp_path_factory.mktemp("evaluated")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "somebodys.py").write_text("def correct(block):\n    return 1.5 * block\n")
        out = folder / "out"
        yield out, run(
            "evaluate", "--pairs", pairs.folder, "--run", "identity", "-o", out,
            "--external", "somebodys:correct", "--max-patches", 9, "--seed", 3,
        )  # fmt: skip


def test_one_command_writes_tables_figures_and_report(
    pairs: Pairs, evaluated: tuple[Path, Result]
) -> None:
    out, result = evaluated
    assert result.exit_code == 0
    for name in ("no correction", "identity", "somebodys"):
        assert name in result.stdout
    tables = read_json(out / "tables.json")
    first, second, third = tables["levels"]["patch"]["table2"]
    assert first["method"] == "no correction"
    assert {**first, "method": ""} == {**second, "method": ""}
    assert third["agatston_mae"] != first["agatston_mae"]
    assert tables["reference"] == "identity"
    for name in ("samples", "confusion-patch", "confusion-scan", "bland-altman-patch",
                 "bland-altman-scan", "profiles"):  # fmt: skip
        assert (out / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    record = read_json(out / "run.json")
    assert record["settings"]["seed"] == 3
    assert record["inputs_sha256"]["pairs"] == pairs.summary["sha256"]
    assert len(record["inputs_sha256"]["somebodys:correct"]) == 64
    markdown = (out / "tables.md").read_text(encoding="utf-8")
    assert markdown.count("| no correction |") > 10


def test_the_report_needs_no_other_file_and_says_how_it_was_made(
    pairs: Pairs, evaluated: tuple[Path, Result]
) -> None:
    page = (evaluated[0] / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!data:)", page)
    assert page.count("data:image/svg+xml;base64,") == 6
    for text in ("37.876", "9.391", "Research use only", "commit", "seed"):
        assert text in page
    assert pairs.summary["sha256"] in page


def test_every_number_can_be_made_again_from_the_csv(evaluated: tuple[Path, Result]) -> None:
    out = evaluated[0]
    with (out / "patches.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "no correction"]
    errors = [abs(float(r["agatston_predicted"]) - float(r["agatston_true"])) for r in rows]
    row = read_json(out / "tables.json")["levels"]["patch"]["table2"][0]
    assert row["n"] == len(rows)
    assert row["agatston_mae"] == pytest.approx(np.mean(errors))
    assert row["agatston_mae_se"] == pytest.approx(np.std(errors, ddof=1) / np.sqrt(len(errors)))


def test_what_cannot_be_evaluated_is_refused(pairs: Pairs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("evaluate", "-o", out).exit_code == 2
    with pytest.raises(ProdmError, match="--reference must be one of no correction, got 'x'"):
        run("evaluate", "--pairs", pairs.folder, "-o", out, "--reference", "x")
    with pytest.raises(ProdmError, match="not a finished store of pairs"):
        run("evaluate", "--pairs", tmp_path, "-o", out)
    assert not out.exists()
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(ProdmError, match="exists already"):
        run("evaluate", "--pairs", pairs.folder, "-o", out)
    assert list(out.iterdir()) == [out / "mine"]


def test_an_ablation_trains_evaluates_and_goes_on(
    pairs: Pairs, tmp_path: Path, settings: Path
) -> None:
    listed = tmp_path / "list.toml"
    listed.write_text('[loss]\nsymbol = "λ"\nkey = "model.loss.weight"\nvalues = [0, 20]\n')
    out = tmp_path / "out"
    command = ("ablate", "loss", settings, "--pairs", pairs.folder, "-o", out, "--list", listed,
               "--max-minutes", 0.2, "--max-patches", 6, "--validation-patches", 2)  # fmt: skip
    result = run(*command)
    assert result.exit_code == 0
    assert "λ 20" in result.stdout
    content = read_json(out / "result" / "ablation.json")
    assert content["values"] == [0, 20]
    assert [row["method"] for row in content["rows"]] == ["loss = 0", "loss = 20"]
    assert (out / "result" / "curves.pdf").exists()
    assert "data:image/svg" in (out / "result" / "report.html").read_text(encoding="utf-8")
    weights = read_json(out / "runs" / "20" / "settings.json")["settings"]["model"]["loss"]
    assert weights["weight"] == 20
    trained = (out / "runs" / "20" / "best.safetensors").stat().st_mtime_ns
    assert run(*command).exit_code == 0  # finished runs are kept
    assert (out / "runs" / "20" / "best.safetensors").stat().st_mtime_ns == trained


def test_jumps_vary_over_one_training(pairs: Pairs, tmp_path: Path, settings: Path) -> None:
    listed = tmp_path / "list.toml"
    listed.write_text('[jumps]\nkey = "jumps"\nvalues = [1, 3]\ntrains = false\n')
    out = tmp_path / "out"
    result = run("ablate", "jumps", settings, "--pairs", pairs.folder, "-o", out, "--list", listed,
                 "--max-minutes", 0.2, "--max-patches", 3, "--validation-patches", 2,
                 "--json")  # fmt: skip
    assert len(json.loads(result.stdout)["rows"]) == 2
    assert [folder.name for folder in (out / "runs").iterdir()] == ["all"]


def test_every_ablation_of_the_paper_ships() -> None:
    from prodm.evaluation.ablation import read_ablation

    assert read_ablation("lambda").values == (0, 10, 15, 20, 40, 80)
    assert read_ablation("k").values == (3, 5, 7, 9)
    assert read_ablation("lambda").overrides(15)["model.loss.calcium"] == "volume"
    assert not read_ablation("jumps").trains
    for name in ("tau", "m"):
        assert len(read_ablation(name).values) > 2
    with pytest.raises(ProdmError, match="there is no ablation 'x'; the list has lambda, k"):
        read_ablation("x")


def made_up_scan(peak_hu: float) -> Volume:
    """Return a scan of soft tissue with one smeared lesion, 5 mm slices as in COCA."""
    rng = np.random.default_rng(round(peak_hu))
    hu = 40 + 4 * ndimage.gaussian_filter(rng.normal(0, 5, (20, 96, 96)), (0, 1, 1))
    excess = np.zeros(hu.shape)
    excess[9:12, 46:50, 44:52] = 1
    excess = ndimage.gaussian_filter(excess, (0, 1.5, 1.5))
    hu += excess / excess.max() * peak_hu
    return Volume(hu.astype(np.int16), Grid(hu.shape, (5.0, 0.7, 0.7)))


@pytest.fixture
def coca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a tree with three scored scans, one without a row, and one whose row does not add."""
    root = tmp_path / "coca"
    for name, peak_hu in (("1", 0.0), ("2", 80.0), ("3", 400.0), ("4", 90.0), ("5", 90.0)):
        write_nongated(root, name, made_up_scan(peak_hu))
    write_sheet(
        root,
        {"1A": [0, 0, 0, 0, 0], "2A": [0, 90, 0, 0, 90], "3A": [0, 450, 0, 0, 450],
         "5A": [0, 9, 0, 0, 90]},
    )  # fmt: skip

    def all_of_it(volume: Volume) -> heart.HeartRegion:
        mask = np.zeros(volume.shape, dtype=bool)
        mask[4:16, 16:80, 16:80] = True
        return heart.HeartRegion(mask, "made up")

    monkeypatch.setattr(heart, "find_heart", all_of_it)
    return root


def test_real_scans_are_compared_with_the_sheet(coca: Path, tmp_path: Path, theirs: str) -> None:
    out = tmp_path / "out"
    result = run("evaluate", "--coca-nongated", coca, "--external", theirs, "-o", out, "--json")
    content = json.loads(result.stdout)
    assert content["n"] == 3
    assert set(content["problems"]) == {"4", "5"}
    before, after = content["rows"]
    assert before["method"] == "no correction"
    assert before["thresholds"][0] == {
        "threshold": 1, "positive": 2, "sensitivity": 0.5, "specificity": 1.0,
    }  # fmt: skip
    assert after["thresholds"][0]["sensitivity"] == 1.0
    with (out / "scans.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["scan"]: row for row in csv.DictReader(file)}
    assert float(rows["2"]["no correction"]) == 0 < float(rows["2"][theirs])
    for name in ("report.html", "tables.md", "run.json", "confusion.pdf", "bland-altman.png"):
        assert (out / name).exists()
    assert len(read_json(out / "run.json")["inputs_sha256"]["scores.xlsx"]) == 64


def test_agreement_with_the_sheet_by_hand() -> None:
    from prodm.evaluation.nongated import Reading, tables_of

    found = [("a", 0, 0), ("b", 5, 0), ("c", 150, 90), ("d", 500, 450), ("e", 0, 20)]
    readings = [Reading(name, sheet, {"m": score}) for name, sheet, score in found]
    row = tables_of(readings, {})["rows"][0]
    assert row["agatston_mae"] == (0 + 5 + 60 + 50 + 20) / 5
    assert row["grade_accuracy_percent"] == 40
    sensitivities = [part["sensitivity"] for part in row["thresholds"]]
    assert sensitivities == [pytest.approx(2 / 3), 0.5, 1]
    assert [part["specificity"] for part in row["thresholds"]] == [0.5, 1, 1]
    # True grades 0 1 3 4 0, found 0 0 2 4 2: 4 steps off; of 5 x 5 pairs, 8 + 7 + 9 + 12 + 8.
    assert row["kappa"] == pytest.approx(1 - (4 / 5) / (44 / 25))
    with pytest.raises(ProdmError, match="no non-gated scan could be read"):
        tables_of([], {})


@pytest.mark.slow
def test_phantoms_in_coca_s_form_agree_with_their_sheet(tmp_path: Path) -> None:
    from prodm.agatston import score
    from prodm.anatomy.phantom import make_phantom

    root = tmp_path / "coca"
    totals = {}
    for number in (1, 2):
        phantom = make_phantom(number)
        totals[f"{number}A"] = round(score(phantom.still, phantom.calcium).agatston)
        write_nongated(root, str(number), phantom.still)
    write_sheet(root, {key: [0, total, 0, 0, total] for key, total in totals.items()})
    out = tmp_path / "out"
    result = run("evaluate", "--coca-nongated", root, "--run", "identity", "-o", out, "--json")
    content = json.loads(result.stdout)
    assert content["n"] == 2, content["problems"]
    before, after = content["rows"]
    assert {**before, "method": ""} == {**after, "method": ""}
    with (out / "scans.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):  # other calcium of the chest may lie in the heart found
            assert float(row["no correction"]) >= 0.7 * float(row["sheet"])
