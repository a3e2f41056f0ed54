"""The worst cases of an evaluation: the right ones, and the same scores when corrected again."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from prodm.cli import cli
from prodm.evaluation import report
from prodm.evaluation.comparison import Case, compare
from prodm.evaluation.methods import Blocks, Method, no_correction
from prodm.evaluation.metrics import Outcome
from prodm.evaluation.patches import select
from prodm.pairs.store import Pairs, finish, write_scan
from prodm.volume import Vector

ROOT = Path(__file__).parents[2]


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


worst_cases = load("worst_cases", ROOT / "benchmarks" / "worst_cases.py")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    made = load("evaluation_store", ROOT / "tests" / "evaluation" / "conftest.py")
    folder = tmp_path_factory.mktemp("pairs")
    for patient in made.patients_of("test", 2):
        write_scan(folder, made.scan_of(patient))
    finish(folder, {"seed": 0}, [])
    return Pairs(folder)


@pytest.fixture(scope="module")
def evaluation(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluated") / "out"
    arguments = ["evaluate", "--pairs", str(pairs.folder), "--run", "identity", "-o", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "draw_figures", lambda comparison: {})  # they take most of the time
        CliRunner().invoke(cli, arguments, catch_exceptions=False)
    return folder


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["worst_cases.py", *map(str, arguments)])
    worst_cases.main()


def noisy(blocks: Blocks, spacing_mm: Vector, seed: int) -> Blocks:
    noise = np.random.default_rng(seed).normal(0, 60, blocks.shape)
    return blocks + noise.astype(np.float32)


def patch(true: float, moved: float, corrected: float, block: int = 0) -> Any:  # noqa: ANN401
    case = Case("scan", "patient", block, 0, "jitter-small", 5.0, true, 3.0, 400.0)
    outcomes = (Outcome(true, found, 0.1, 0.1, 1.0, 1.0, 0.9) for found in (corrected, moved))
    return worst_cases.Patch(case, *outcomes)


def test_the_largest_errors_come_first_whatever_their_sign() -> None:
    patches = [patch(100, 100, 100 + error, n) for n, error in enumerate((5, -30, 0, 12))]
    assert [p.case.block for p in worst_cases.worst_of(patches)] == [1, 3, 0, 2]
    many = [patch(100, 100, 100 + n, n) for n in range(50)]
    assert [p.case.block for p in worst_cases.worst_of(many)] == list(range(49, 29, -1))


def test_a_correction_is_worse_where_it_leads_further_from_the_truth() -> None:
    assert patch(true=100, moved=90, corrected=111).is_worse
    assert not patch(true=100, moved=90, corrected=110).is_worse
    assert not patch(true=100, moved=90, corrected=99).is_worse


def test_shares_count_the_worst_beside_all() -> None:
    low, high = patch(5, 5, 5), patch(500, 400, 200)
    table = worst_cases._shares([high], [high, low, low, low])
    shares = {row[:2]: row[2:] for row in table.rows}
    assert shares["true grade", "severe"] == ("100", "25")
    assert shares["true grade", "minimal"] == ("0", "75")
    assert shares["corrected score", "further off than without correction"] == ("100", "25")
    assert shares["corrected score", "too low"] == ("100", "25")


def test_the_tables_and_the_picture_are_made(
    evaluation: Path,
    pairs: Pairs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    picture = tmp_path / "worst.png"
    source = ("--pairs", pairs.folder, "--run", "identity")
    run(monkeypatch, evaluation, "--method", "identity", *source, "--number", 2, "-o", picture)
    out, err = capsys.readouterr()
    assert "| scan | block | motion |" in out
    assert "| corrected score | further off than without correction | 0 | 0 |" in out
    assert "2 of 2 patches score as in the evaluation" in err
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_random_method_scores_as_in_the_comparison(pairs: Pairs) -> None:
    method = Method("noisy", noisy, "external", "noisy", is_random=True)
    comparison = compare(select(pairs), [no_correction(), method], num_samples=2, seed=3)
    start, results = comparison.results
    rows = zip(comparison.patches, results.patches, start.patches, strict=True)
    worst = worst_cases.worst_of([worst_cases.Patch(*row) for row in rows])[:4]
    shown = worst_cases.correct_again(pairs, worst, method, split="test", seed=3)
    assert [each.patch for each in shown] == worst
    assert [worst_cases.difference(each) for each in shown] == [None] * 4
    other = worst_cases.correct_again(pairs, worst, method, split="test", seed=4)
    assert all("the corrected one scores" in worst_cases.difference(each) for each in other)


def test_a_patch_without_calcium_has_a_picture_too() -> None:
    nothing = np.zeros((16, 64, 64), np.float32)
    images = worst_cases._around_calcium([nothing] * 3, np.ones(nothing.shape, bool))
    assert [image.shape for image in images] == [(48, 48)] * 3


def test_the_picture_shows_the_calcium_at_the_edge_of_a_block() -> None:
    hu = np.zeros((16, 64, 64), np.float32)
    hu[5, 61:63, 1:4] = 400
    (image,) = worst_cases._around_calcium([hu], np.ones(hu.shape, bool))
    assert np.argwhere(image).min(axis=0).tolist() == [61 - 16, 1]


def test_other_methods_and_stores_are_refused(
    evaluation: Path, pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="has no method 'prodm', but no correction, identity"):
        run(monkeypatch, evaluation, "--method", "prodm")
    record = json.loads((evaluation / "run.json").read_text())
    record["inputs_sha256"]["pairs"] = "another"
    (tmp_path / "run.json").write_text(json.dumps(record))
    (tmp_path / "patches.csv").write_bytes((evaluation / "patches.csv").read_bytes())
    source = ("--pairs", pairs.folder, "--run", "identity", "-o", tmp_path / "worst.png")
    with pytest.raises(SystemExit, match="is not the store that"):
        run(monkeypatch, tmp_path, "--method", "identity", *source)
