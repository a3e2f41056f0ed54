"""``prodm demo`` prints a table and what to type next, and leaves a folder whole or none."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import prodm.demo
from prodm.anatomy.phantom import PhantomSettings
from prodm.anatomy.plaques import PlaqueSettings
from prodm.cli import cli
from prodm.correction import Identity
from prodm.demo import Case, DemoSettings, Outcome, run_case
from prodm.errors import ProdmError

PHANTOM = PhantomSettings(
    num_pixels=200,
    gated_fraction=1.0,
    gated_pixel_mm=(0.6, 0.6),
    coverage_mm=(60.0, 60.0),
    plaques=PlaqueSettings(zero_calcium_fraction=0.0),
)
SMALL = DemoSettings(cases=(Case(13, "severe", "jitter-small"),), workers=1, phantom=PHANTOM)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prodm.demo, "DEMO", SMALL)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run_case(SMALL.cases[0], SMALL, Identity())


def run(*arguments: str | Path) -> Result:
    command = ["demo", *(str(argument) for argument in arguments)]
    return CliRunner().invoke(cli, command, catch_exceptions=False)


@pytest.mark.usefixtures("small")
def test_it_prints_the_three_scores_and_three_commands(tmp_path: Path) -> None:
    result = run("-o", tmp_path / "out", "--method", "identity")
    assert result.exit_code == 0
    for word in ("truth", "moving", "corrected", "90 % interval", "Right grades", "Research use"):
        assert word in result.stdout
    commands = [line for line in result.stdout.splitlines() if line.startswith("  prodm ")]
    assert len(commands) == 3
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.usefixtures("small")
def test_json_is_what_the_folder_holds_and_nothing_is_replaced_unasked(
    tmp_path: Path, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prodm.demo, "run_demo", lambda *arguments: [outcome])
    result = run("-o", tmp_path / "out", "--method", "identity", "--json")
    assert json.loads(result.stdout) == json.loads((tmp_path / "out" / "demo.json").read_text())
    with pytest.raises(ProdmError, match="exists already"):
        run("-o", tmp_path / "out", "--method", "identity")
    assert run("-o", tmp_path / "out", "--method", "identity", "--overwrite").exit_code == 0


@pytest.mark.usefixtures("small")
def test_an_unknown_method_or_missing_weights_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(ProdmError, match="method must be one of"):
        run("-o", tmp_path / "out", "--method", "magic")
    with pytest.raises(ProdmError, match="weights"):
        run("-o", tmp_path / "out", "--weights", tmp_path / "no weights.safetensors")
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> None:  # noqa: ANN401
        raise KeyboardInterrupt

    monkeypatch.setattr(prodm.demo, "run_demo", interrupted)
    result = CliRunner().invoke(cli, ["demo", "-o", str(tmp_path / "out")])
    assert result.exit_code != 0
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_whole_demo_and_the_commands_after_it_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = json.loads(run("--method", "identity", "--json").stdout)
    assert len(content["patients"]) == 5
    for command in content["next_commands"]:
        result = CliRunner().invoke(cli, shlex.split(command)[1:], catch_exceptions=False)
        assert result.exit_code == 0
    again = json.loads(Path("corrected/result.json").read_text())
    (first,) = (entry for entry in content["patients"] if entry["seed"] == 960_001)
    assert again["before"]["agatston"] == pytest.approx(first["moving"]["agatston"])
    assert again["after"]["agatston"] == pytest.approx(first["corrected"]["agatston"])
