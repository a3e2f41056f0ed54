"""``prodm study`` from the command line: make, refuse, report."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
from click.testing import CliRunner, Result

from prodm.cli import cli
from prodm.errors import ProdmError
from prodm.study.criteria import CRITERION_NAMES
from prodm.study.store import AnswerStore


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["study", *map(str, arguments)])


def refused(*arguments: str | Path) -> str:
    """Return the sentence with which a command stops."""
    result = run(*arguments)
    assert isinstance(result.exception, ProdmError), result.output
    return str(result.exception)


@pytest.fixture
def scans(tmp_path: Path) -> dict[str, Path]:
    """Two methods on one grid."""
    rng = np.random.default_rng(0)
    paths = {}
    for method in ("original", "prodm"):
        hu = rng.normal(40, 20, (24, 20, 6)).astype(np.int16)
        paths[method] = tmp_path / f"{method}.nii.gz"
        nibabel.Nifti1Image(hu, np.diag([-0.5, -0.5, 3.0, 1.0])).to_filename(paths[method])
    return paths


@pytest.fixture
def study(tmp_path: Path, scans: dict[str, Path]) -> Path:
    case = ",".join(f"{method}={path}" for method, path in scans.items())
    readers = ("--reader", "Lee", "--reader", "Roy")
    result = run("new", "-o", tmp_path / "trial", "--case", f"P1:{case}", *readers)
    assert result.exit_code == 0, result.output
    return tmp_path / "trial"


def finish(folder: Path) -> None:
    with AnswerStore(folder) as store:
        for reader in store.readers():
            for record in store.readings(reader):
                version = 0
                for slot in range(len(record.images)):
                    for criterion in CRITERION_NAMES:
                        version = store.rate(
                            reader, record.reading_id, version, slot, criterion, 4
                        ).version
                store.rank(reader, record.reading_id, version, [1, 2])
            store.finish(reader)


def test_a_table_of_cases_makes_a_study(tmp_path: Path, scans: dict[str, Path]) -> None:
    rows = [f"{case},{m},{p.name}" for case in ("P1", "P2") for m, p in scans.items()]
    table = tmp_path / "cases.csv"
    table.write_text("\n".join(["case,method,path", *rows]))
    result = run("new", "-o", tmp_path / "trial", "--cases", table, "--reader", "Lee", "--json")
    content = json.loads(result.stdout)
    assert content["cases"] == ["P1", "P2"]
    assert content["methods"] == ["original", "prodm"]
    assert content["readers"][0]["name"] == "Lee"
    record = json.loads((tmp_path / "trial" / "key" / "run.json").read_text())
    assert set(record["inputs_sha256"]) == {f"{c} {m}" for c in ("P1", "P2") for m in scans}
    assert not (tmp_path / "trial" / "run.json").exists()


def test_wrong_cases_are_refused_before_anything_is_written(
    tmp_path: Path, scans: dict[str, Path]
) -> None:
    output = tmp_path / "trial"
    case = ",".join(f"{method}={path}" for method, path in scans.items())
    assert "needs cases" in refused("new", "-o", output)
    assert "makes its own cases" in refused("new", "-o", output, "--demo", "--case", f"P:{case}")
    assert "LOW below HIGH" in refused(
        "new", "-o", output, "--case", f"P:{case}", "--clip-hu", "9", "1"
    )
    assert "say where to look" in refused(
        "new", "-o", output, "--case", f"P:{case}", "--size", "2", "4", "4"
    )
    assert "drawn from the 1" in refused(
        "new", "-o", output, "--case", f"P:{case}", "--repeats", "2"
    )
    assert not output.exists()


def test_an_existing_study_is_kept(study: Path, scans: dict[str, Path]) -> None:
    case = "P:" + ",".join(f"{method}={path}" for method, path in scans.items())
    assert "exists already" in refused("new", "-o", study, "--case", case)
    assert run("new", "-o", study, "--case", case, "--overwrite").exit_code == 0


def test_serving_needs_readers_and_whole_keys(study: Path, tmp_path: Path) -> None:
    assert "is not there" in refused("serve", tmp_path / "nothing")
    assert "both --tls-certificate and --tls-key" in refused(
        "serve", study, "--tls-key", tmp_path / "key.pem"
    )
    assert "there is no file" in refused(
        "serve", study, "--tls-key", tmp_path / "k.pem", "--tls-certificate", tmp_path / "c.pem"
    )


def test_a_file_that_is_no_certificate_is_refused(study: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("not a certificate")
    sentence = refused("serve", study, "--tls-key", wrong, "--tls-certificate", wrong)
    assert "are not a certificate and its key in PEM" in sentence


def test_a_study_without_readers_is_not_served(tmp_path: Path, scans: dict[str, Path]) -> None:
    case = "P:" + ",".join(f"{method}={path}" for method, path in scans.items())
    run("new", "-o", tmp_path / "trial", "--case", case)
    assert "add one with --reader NAME" in refused("serve", tmp_path / "trial")


def test_serve_prints_its_address_and_stops_cleanly(study: Path) -> None:
    command = [sys.executable, "-m", "prodm", "study", "serve", str(study), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:")
        assert "Lee, Roy" in line
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(timeout=20) in (0, 130)
        finally:
            process.kill()


def test_beyond_this_machine_every_reader_gets_a_link(study: Path) -> None:
    command = [sys.executable, "-m", "prodm", "study", "serve", str(study), "--port", "0"]
    command += ["--host", "0.0.0.0", "--reader", "Kim", "--public-name", "ct.example"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(4)]
        process.terminate()
    assert [line.partition(":")[0] for line in lines[1:]] == ["Lee", "Roy", "Kim"]
    assert all("http://ct.example:" in line and "#token=" in line for line in lines[1:])


def test_a_report_waits_for_the_readers(study: Path) -> None:
    assert "add --unfinished" in refused("report", study)
    assert not (study / "report").exists()
    assert run("report", study, "--unfinished").exit_code == 0
    assert (study / "report" / "report.html").exists()


def test_a_finished_study_is_reported(study: Path, tmp_path: Path) -> None:
    finish(study)
    result = run("report", study)
    assert result.exit_code == 0, result.output
    assert "4.00 ± 0.00" in result.stdout
    assert "exists already" in refused("report", study)
    shutil.move(study / "key", tmp_path / "elsewhere")
    moved = ("report", study, "--key", tmp_path / "elsewhere", "-o", tmp_path / "out", "--json")
    content = json.loads(run(*moved).stdout)
    assert len(content["summary"]) == 6
    assert (tmp_path / "out" / "run.json").exists()


@pytest.mark.parametrize("command", [[], ["new"], ["serve"], ["report"]])
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Example: prodm study" in result.stdout


@pytest.mark.slow
def test_the_demo_makes_a_study_from_phantoms(tmp_path: Path) -> None:
    result = run("new", "-o", tmp_path / "demo", "--demo", "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert len(content["cases"]) == 6
    assert content["methods"] == ["original", "halfway", "still"]
