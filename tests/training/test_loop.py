"""Training must learn, stop cleanly, and go on after a kill as if nothing had happened."""

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from prodm.cli.train import train as train_command
from prodm.errors import ProdmError
from prodm.model.baselines import ModelSettings, Predict, build_network
from prodm.model.bridge import BrownianBridge
from prodm.model.checkpoint import load_network, read_tensors, save_checkpoint
from prodm.model.losses import LossSettings
from prodm.model.network import NetworkSettings
from prodm.pairs.store import Pairs
from prodm.training.kept import load_kept
from prodm.training.lessons import LESSONS
from prodm.training.log import Log
from prodm.training.loop import TrainingSettings, train
from prodm.training.run import open_run
from prodm.training.windows import WindowSettings

TINY = TrainingSettings(
    model=ModelSettings(
        network=NetworkSettings(
            channels=(8, 16), attention=(False, False), num_res_blocks=1, num_head_channels=8,
            norm_groups=8, fold=2,
        ),
        bridge=BrownianBridge(noise_scale=0.04),
        loss=LossSettings(calcium="none"),
    ),
    windows=WindowSettings(size=32),
    num_steps=8,
    batch_size=4,
    warmup_steps=2,
    learning_rate=1e-3,
    ema_decay=0.5,
    report_every_steps=2,
    validate_every_steps=4,
)  # fmt: skip


def no_validation(predict: Predict, num_slices: int) -> dict[str, float]:
    return {"agatston_mae": 1.0}


def state_of(run: Path) -> dict[str, torch.Tensor]:
    return read_tensors(run / "last.safetensors")[0]


def same_state(first: Path, second: Path) -> bool:
    a, b = state_of(first), state_of(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_loss_falls(pairs: Pairs, tmp_path: Path) -> None:
    settings = replace(TINY, num_steps=60, report_every_steps=20)
    train(settings, pairs, tmp_path, validate=no_validation)
    rows = Log(tmp_path / "log.csv", writes=False).rows
    losses = [float(row["loss"]) for row in rows if row["loss"]]
    assert losses[-1] < 0.9 * losses[0]
    assert (tmp_path / "curve.png").exists()


@pytest.mark.parametrize("method", ["prodm", "cgan"])
def test_a_run_in_two_parts_equals_one_in_a_piece(
    pairs: Pairs, tmp_path: Path, method: str
) -> None:
    settings = replace(TINY, model=replace(TINY.model, method=method))
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    for run in (whole, parted):
        run.mkdir()
    train(settings, pairs, whole, validate=no_validation)

    class KilledError(Exception):
        pass

    def kill_at_step_4(text: str, step: int, steps: int) -> None:
        if step == 4:
            raise KilledError

    eager = replace(settings, save_every_minutes=0.0)
    with pytest.raises(KilledError):
        train(eager, pairs, parted, validate=no_validation, report=kill_at_step_4)
    assert not same_state(whole, parted)
    train(settings, pairs, parted, validate=no_validation, resume=True)
    assert same_state(whole, parted)


SCRIPT = """
import sys
import torch
from pathlib import Path
from dataclasses import replace
sys.path.insert(0, {folder!r})
from test_loop import TINY, no_validation
from prodm.pairs.store import Pairs
from prodm.training.loop import train
torch.set_num_threads(1)
settings = replace(TINY, num_steps=40, save_every_minutes=0.0)
train(settings, Pairs(Path({pairs!r})), Path(sys.argv[1]), validate=no_validation,
      resume="--resume" in sys.argv)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_changes_nothing(pairs: Pairs, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent), pairs=str(pairs.folder)))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for run in (whole, killed):
        run.mkdir()
    subprocess.run([sys.executable, script, whole], check=True)
    for _ in range(3):
        process = subprocess.Popen([sys.executable, script, killed, "--resume"])
        before = (killed / "last.safetensors").stat().st_mtime_ns if list(killed.iterdir()) else 0
        while process.poll() is None:
            state = killed / "last.safetensors"
            if state.exists() and state.stat().st_mtime_ns > before:
                time.sleep(0.15)
                os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.01)
        process.wait()
    subprocess.run([sys.executable, script, killed, "--resume"], check=True)
    assert same_state(whole, killed)


def test_time_ends_a_run_and_takes_the_learning_rate_with_it(pairs: Pairs, tmp_path: Path) -> None:
    settings = replace(TINY, num_steps=10_000_000, report_every_steps=1)
    result = train(settings, pairs, tmp_path, validate=no_validation, max_minutes=0.02)
    assert 1 < result["steps"] < 1000
    rates = [
        float(row["learning_rate"])
        for row in Log(tmp_path / "log.csv", writes=False).rows
        if row["learning_rate"]
    ]
    assert rates[-1] < 0.3 * max(rates)
    assert (tmp_path / "last.safetensors").exists()


def test_the_best_network_is_kept(pairs: Pairs, tmp_path: Path) -> None:
    errors = iter([3.0, 5.0])

    def validate(predict: Predict, num_slices: int) -> dict[str, float]:
        windows = torch.zeros(2, num_slices, 32, 32)
        assert predict(windows, torch.Generator()).shape == windows.shape
        return {"agatston_mae": next(errors)}

    result = train(TINY, pairs, tmp_path, validate=validate)
    assert result["best"] == 3.0
    trained = load_network(tmp_path / "best.safetensors")
    assert trained.info["steps"] == 4
    assert trained.info["data_sha256"] == pairs.summary["sha256"]


def test_training_may_start_from_weights(pairs: Pairs, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for run in (first, second):
        run.mkdir()
    train(TINY, pairs, first, validate=no_validation)
    weights = first / "best.safetensors"
    frozen = replace(TINY, num_steps=1, learning_rate=1e-12)
    train(frozen, pairs, second, validate=no_validation, init=weights)
    begun, given = load_network(second / "best.safetensors"), load_network(weights)
    for name, value in given.network.state_dict().items():
        torch.testing.assert_close(begun.network.state_dict()[name], value)
    other = replace(TINY, model=replace(TINY.model, network=replace(TINY.model.network, fold=1)))
    with pytest.raises(ProdmError, match="of a network of another size"):
        train(other, pairs, second, validate=no_validation, init=weights)


def test_a_loss_that_is_not_a_number_stops_and_keeps_the_last_state(
    pairs: Pairs, tmp_path: Path
) -> None:
    train(TINY, pairs, tmp_path, validate=no_validation)
    good = state_of(tmp_path)
    wild = replace(TINY, num_steps=12, learning_rate=1e38, clip_norm=math.inf, warmup_steps=0)
    with pytest.raises(ProdmError, match=r"the loss became .* the last good state is kept"):
        train(wild, pairs, tmp_path, validate=no_validation, resume=True)
    assert all(torch.equal(good[name], value) for name, value in state_of(tmp_path).items())


def test_a_run_is_resumed_only_as_it_was_begun(pairs: Pairs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(ProdmError, match=r"there is no run in .* to resume"):
        open_run(run, TINY, pairs, resume=True)
    open_run(run, TINY, pairs, resume=False)
    open_run(run, TINY, pairs, resume=True)
    with pytest.raises(ProdmError, match="exists already"):
        open_run(run, TINY, pairs, resume=False)
    with pytest.raises(ProdmError, match="begun with other settings"):
        open_run(run, replace(TINY, seed=1), pairs, resume=True)


DISTRIBUTED = """
import sys
import torch
from pathlib import Path
from dataclasses import replace
sys.path.insert(0, {folder!r})
from test_loop import TINY, no_validation
from prodm.pairs.store import Pairs
from prodm.training.loop import train
torch.set_num_threads(1)
train(replace(TINY, shards=2), Pairs(Path({pairs!r})), Path(sys.argv[1]), validate=no_validation)
"""


def separator_file(place: Path, seed: int = 0) -> Path:
    model = replace(TINY.model, method="separator")
    save_checkpoint(place, build_network(model, seed=seed).state_dict(), model, {})
    return place


def command(pairs: Pairs, run: Path, *arguments: str | Path) -> Result:
    fixed = ["--pairs", pairs.folder, "-o", run, "--validation-patches", "2"]
    return CliRunner().invoke(train_command, [str(part) for part in (*arguments, *fixed)])


def test_a_reader_learns_through_a_separator(pairs: Pairs, tmp_path: Path) -> None:
    """From the command to weights; the separator is part of what a run was begun with."""
    first, second = (separator_file(tmp_path / f"{seed}.safetensors", seed) for seed in (1, 2))
    small = ("--set", "num_steps=2", "--set", "batch_size=2", "--set", "model.network.num_slices=3")
    run = tmp_path / "run"
    result = command(pairs, run, "reader", "--separator", first, *small)
    assert result.exit_code == 0, result.output
    assert load_network(run / "best.safetensors").settings.method == "reader"
    again = command(pairs, run, "reader", "--separator", second, *small, "--resume")
    assert isinstance(again.exception, ProdmError)
    assert "another separator" in str(again.exception)


@pytest.mark.parametrize(
    ("method", "motions"),
    [("focuser", "found"), ("focuser", "near"), ("placer", "found"), ("polisher", "near")],
)
def test_motions_that_were_found_are_learnt_from(
    method: str, motions: str, pairs: Pairs, tmp_path: Path
) -> None:
    """From the command to weights. What was found is kept, and a resumed run finds the rest."""
    run, network = tmp_path / "run", "model.network"
    small = (
        method, "--set", f"windows.motions={motions}", "--workers", "1",
        "--set", "num_steps=2", "--set", "batch_size=2",
        "--set", f"{network}.channels=[8, 16]",
        "--set", f"{network}.attention=[false, false]",
        "--set", f"{network}.num_head_channels=8",
    )  # fmt: skip
    result = command(pairs, run, *small, "--findings", "2")
    assert result.exit_code == 0, result.output
    assert load_network(run / "best.safetensors").settings.method == method
    kept = (run / "findings" / "000000.npz").read_bytes()
    (run / "findings" / "000001.npz").unlink()
    again = command(pairs, run, *small, "--findings", "3", "--resume")
    assert again.exit_code == 0, again.output
    assert len(load_kept(run / "findings", LESSONS[method].kind)) == 3
    assert (run / "findings" / "000000.npz").read_bytes() == kept
    (run / "findings" / "000002.npz").write_bytes(kept[:1000])
    damaged = command(pairs, run, *small, "--findings", "3", "--resume")
    assert isinstance(damaged.exception, ProdmError)
    assert "000002.npz is damaged" in str(damaged.exception)
    (run / "findings" / "000002.npz").unlink()
    other = command(pairs, tmp_path / "other", *small, "--findings-of", run)
    assert other.exit_code == 0, other.output
    assert not (tmp_path / "other" / "findings").exists()


@pytest.mark.parametrize(
    ("settings", "option", "sentence"),
    [
        ("compact", "--separator", "--separator is for training reader"),
        ("reader", "--reader", "--reader is for training focuser"),
    ],
)
def test_only_some_take_the_weights_of_others(
    pairs: Pairs, tmp_path: Path, settings: str, option: str, sentence: str
) -> None:
    weights = separator_file(tmp_path / "separator.safetensors")
    result = command(pairs, tmp_path / "run", settings, option, weights)
    assert sentence in str(result.exception)
    assert not (tmp_path / "run").exists()


def test_two_processes_make_the_update_of_one(pairs: Pairs, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    for run in (alone, together):
        run.mkdir()
    train(replace(TINY, shards=2), pairs, alone, validate=no_validation)
    script = tmp_path / "run.py"
    script.write_text(
        DISTRIBUTED.format(folder=str(Path(__file__).parent), pairs=str(pairs.folder))
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*launcher, script, together], check=True, capture_output=True)
    expected, found = state_of(alone), state_of(together)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=2e-4, rtol=1e-3)
    with pytest.raises(ProdmError, match="must be a multiple of shards"):
        replace(TINY, shards=3)


def test_the_command_runs_under_torchrun(pairs: Pairs, tmp_path: Path) -> None:
    """One process begins the run and reports, and both train."""
    run, network = tmp_path / "run", "model.network"
    settings = {
        "num_steps": "2", "batch_size": "2", "shards": "2", f"{network}.channels": "[8, 16]",
        f"{network}.attention": "[false, false]", f"{network}.num_head_channels": "8",
        f"{network}.norm_groups": "8",
    }  # fmt: skip
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = ["-m", "prodm", "train", "compact", "--pairs", str(pairs.folder), "-o", str(run)]
    overrides = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [*launcher, *command, "--validation-patches", "2", *overrides],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.count('"steps": 2') == 1
    assert load_network(run / "best.safetensors").info["steps"] == 2
