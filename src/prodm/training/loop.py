"""The training loop: one for every method, on one CPU, one GPU or many.

A step draws a batch, lets each player of the method improve itself, and folds the network
into its moving average (EMA), which is what is validated and kept. Everything a step draws
follows from the seed and its number, so a run that was killed goes on from ``last`` as if
nothing had happened, bit for bit on a CPU.

A run is a folder:

    run.json            command, settings, versions, hash of the data
    settings.json       the settings in full, which --resume must find unchanged
    last.safetensors    everything needed to go on: networks, optimisers, EMA, step
    best.safetensors    the EMA network with the least validation error
    log.csv             one line per report and per validation
    curve.png           the log as a picture
    findings/           what a focuser, a placer or a polisher learns from (``prodm.training.kept``)

With several processes (``torchrun``) each draws its own shard of every batch and DDP averages
the gradients. ``shards`` says into how many parts a batch is drawn; one process works through
several of them, so that 1 process x 2 shards and 2 processes x 1 shard make the same update.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from prodm.errors import ProdmError
from prodm.model.baselines import (
    AnyNetwork,
    Look,
    ModelSettings,
    Predict,
    build_network,
    build_players,
    build_predict,
)
from prodm.model.checkpoint import read_tensors, save_checkpoint, write_tensors
from prodm.model.growing import starting_weights
from prodm.model.losses import Batch
from prodm.pairs.store import Pairs
from prodm.training.kept import FOLDER, load_kept
from prodm.training.lessons import LESSONS
from prodm.training.log import Log
from prodm.training.processes import agreed, autocast, gradients_meet, inner, process_group
from prodm.training.windows import WindowSettings, draw_batch, load_blocks

STATE_FORMAT = "prodm training state 1"
Validate = Callable[[Predict, int], dict[str, float]]  # (predict, slices per window) -> metrics
Report = Callable[[str, int, int], None]  # (text, step, steps)


@dataclass(frozen=True)
class TrainingSettings:
    """Everything that makes one training differ from another, except the data."""

    model: ModelSettings = field(default_factory=ModelSettings)
    windows: WindowSettings = field(default_factory=WindowSettings)
    num_steps: int = 100_000
    batch_size: int = 64
    shards: int = 1  # parts that a batch is drawn and worked through in
    learning_rate: float = 2e-4
    betas: tuple[float, ...] = (0.9, 0.999)
    weight_decay: float = 1e-4
    warmup_steps: int = 200
    clip_norm: float = 1.0
    ema_decay: float = 0.999
    seed: int = 0
    report_every_steps: int = 50
    save_every_minutes: float = 5.0
    validate_every_steps: int = 2000
    validation_jumps: int = 4

    def __post_init__(self) -> None:
        if self.num_steps < 1 or self.batch_size < 1 or self.shards < 1:
            raise ProdmError("num_steps, batch_size and shards must be at least 1")
        if self.batch_size % self.shards:
            raise ProdmError(
                f"batch_size = {self.batch_size} must be a multiple of shards = {self.shards}"
            )
        if not self.learning_rate > 0 or not 0 <= self.ema_decay < 1 or len(self.betas) != 2:
            raise ProdmError("need learning_rate > 0, 0 <= ema_decay < 1 and two betas")


@dataclass
class Learner:
    """What changes while learning."""

    network: AnyNetwork
    ema: AveragedModel
    players: list[nn.Module]
    optimisers: list[torch.optim.Optimizer]
    step: int = 0
    seconds: float = 0.0
    best: float = math.inf


def train(
    settings: TrainingSettings,
    pairs: Pairs,
    run: Path,
    *,
    validate: Validate,
    resume: bool = False,
    init: Path | None = None,
    max_minutes: float | None = None,
    look: Look | None = None,
    findings_of: Path | None = None,
    report: Report = lambda text, step, steps: None,
) -> dict[str, Any]:
    """Train until the steps or the minutes are used up; return the best metrics.

    ``max_minutes`` counts all the time spent, before and after a resume, and the learning
    rate falls to its end by then. ``look`` is what a reader is shown of windows, and
    ``findings_of`` another run whose findings are learnt from instead of those of this one.
    """
    with process_group() as (rank, num_processes, device):
        if settings.shards % num_processes:
            raise ProdmError(
                f"shards = {settings.shards} must be a multiple of the {num_processes} processes"
            )
        draw = _drawer(settings, pairs, findings_of or run)
        learner = _new_learner(settings, init, device, num_processes, look)
        log = Log(run / "log.csv", writes=rank == 0)
        if resume and (run / "last.safetensors").exists():
            _load_state(run / "last.safetensors", learner)
            log.keep_until(learner.step)
        started = time.monotonic() - learner.seconds
        saved_s = learner.seconds
        own_shards = range(rank, settings.shards, num_processes)
        mean = _RunningMean()

        while not _is_over(learner, settings, max_minutes):
            rate = _learning_rate(learner, settings, max_minutes)
            batches = (
                draw(seed=(settings.seed, learner.step, shard)).to(device) for shard in own_shards
            )
            parts = _improve(learner, list(batches), settings, rate, own_shards)
            learner.step += 1
            learner.seconds = agreed(time.monotonic() - started, num_processes)
            mean.add(parts)

            if learner.step % settings.report_every_steps == 0:
                values = {**mean.means(), "learning_rate": rate}
                log.add(learner.step, learner.seconds, values)
                samples_per_s = settings.batch_size * mean.steps_per_s()
                text = f"loss {values['loss']:.5f}, {samples_per_s:.1f} samples/s"
                report(text, *_done_and_total(learner, settings, max_minutes))
                mean = _RunningMean()
            over = _is_over(learner, settings, max_minutes)
            if learner.step % settings.validate_every_steps == 0 or over:
                if rank == 0:
                    _validate_and_keep(learner, settings, pairs, run, validate, log)
                if num_processes > 1:
                    torch.distributed.barrier()
            if rank == 0 and (over or learner.seconds - saved_s > 60 * settings.save_every_minutes):
                saved_s = learner.seconds
                _save_state(run / "last.safetensors", learner)
        if rank == 0:
            log.draw(run / "curve.png")
        return {"steps": learner.step, "seconds": learner.seconds, "best": learner.best}


def _drawer(settings: TrainingSettings, pairs: Pairs, findings_of: Path) -> Callable[..., Batch]:
    """Return what draws one shard of a batch, given a seed.

    Some learn from what was made before and kept in the folder of a run, all others from windows.
    """
    draw: Callable[..., Batch]
    lesson = LESSONS.get(settings.model.method)
    if lesson is not None:
        draw = partial(lesson.draw, load_kept(findings_of / FOLDER, lesson.kind))
    else:
        draw = partial(draw_batch, pairs, load_blocks(pairs, "train"), settings.windows)
    return partial(
        draw,
        num_slices=settings.model.network.num_slices,
        batch_size=settings.batch_size // settings.shards,
        radius_pixels=settings.model.loss.radius_pixels,
    )


def _new_learner(
    settings: TrainingSettings,
    init: Path | None,
    device: torch.device,
    num_processes: int,
    look: Look | None,
) -> Learner:
    network = build_network(settings.model, settings.seed).to(device)
    if init is not None:
        network.load_state_dict(starting_weights(init, settings.model.network, network))
    average = get_ema_multi_avg_fn(settings.ema_decay)  # type: ignore[no-untyped-call]
    ema = AveragedModel(network, multi_avg_fn=average)
    players: list[nn.Module] = [
        player.to(device) for player in build_players(settings.model, network, settings.seed, look)
    ]
    optimisers: list[torch.optim.Optimizer] = [
        torch.optim.Adam(
            player.network.parameters(),  # type: ignore[union-attr]
            lr=settings.learning_rate,
            betas=(settings.betas[0], settings.betas[1]),
            weight_decay=settings.weight_decay,
        )
        for player in players
    ]
    if num_processes > 1:
        players = [DistributedDataParallel(player) for player in players]
    return Learner(network, ema, players, optimisers)


def _improve(
    learner: Learner,
    batches: Sequence[Any],
    settings: TrainingSettings,
    rate: float,
    shards: Sequence[int],
) -> dict[str, float]:
    """Let each player take one step; return the mean of the loss and its parts."""
    sums: dict[str, float] = {}
    for player, optimiser in zip(learner.players, learner.optimisers, strict=True):
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad(set_to_none=True)
        for n, (batch, shard) in enumerate(zip(batches, shards, strict=True)):
            generator = torch.Generator().manual_seed(_mix(settings.seed, learner.step, shard))
            with gradients_meet(player, last=n == len(batches) - 1):
                with autocast(batch.still.device):
                    loss, parts = player(batch, generator)
                if not torch.isfinite(loss):
                    raise ProdmError(
                        f"the loss became {loss.item()} at step {learner.step}; the last good "
                        "state is kept: lower the learning rate and go on with --resume"
                    )
                (loss / len(batches)).backward()
            for name, value in {"loss": loss.detach(), **parts}.items():
                sums[name] = sums.get(name, 0.0) + value.item() / len(batches)
        nn.utils.clip_grad_norm_(player.parameters(), settings.clip_norm)
        optimiser.step()
    learner.ema.update_parameters(learner.network)
    return sums


def _validate_and_keep(
    learner: Learner,
    settings: TrainingSettings,
    pairs: Pairs,
    run: Path,
    validate: Validate,
    log: Log,
) -> None:
    """Measure the EMA network and keep it where it is the best so far."""
    network: AnyNetwork = learner.ema.module  # type: ignore[assignment]
    network.eval()
    predict = build_predict(settings.model, network)
    metrics = validate(predict, settings.model.network.num_slices)
    network.train()
    log.add(learner.step, learner.seconds, {f"validation_{k}": v for k, v in metrics.items()})
    if metrics["agatston_mae"] < learner.best:
        learner.best = metrics["agatston_mae"]
        info = {
            "steps": learner.step,
            "seconds": round(learner.seconds),
            "data_sha256": pairs.summary["sha256"],
            "validation": metrics,
        }
        save_checkpoint(run / "best.safetensors", network.state_dict(), settings.model, info)


def _save_state(path: Path, learner: Learner) -> None:
    tensors: dict[str, Tensor] = {}
    for n, player in enumerate(learner.players):
        for name, value in inner(player).state_dict().items():
            tensors[f"player{n}.{name}"] = value
        for key, slots in learner.optimisers[n].state_dict()["state"].items():
            for name, value in slots.items():
                tensors[f"optimiser{n}.{key}.{name}"] = value
    for name, value in learner.ema.state_dict().items():
        tensors[f"ema.{name}"] = value
    content = {
        "format": STATE_FORMAT,
        "step": learner.step,
        "seconds": learner.seconds,
        "best": learner.best if math.isfinite(learner.best) else None,
    }
    write_tensors(path, {name: value.clone() for name, value in tensors.items()}, content)


def _load_state(path: Path, learner: Learner) -> None:
    tensors, content = read_tensors(path)
    if content.get("format") != STATE_FORMAT:
        raise ProdmError(f"{path} is not a training state of this version of prodm")

    def below(prefix: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(prefix): value
            for name, value in tensors.items()
            if name.startswith(prefix)
        }

    try:
        for n, player in enumerate(learner.players):
            inner(player).load_state_dict(below(f"player{n}."))
            optimiser = learner.optimisers[n]
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in below(f"optimiser{n}.").items():
                key, slot = name.split(".")
                state.setdefault(int(key), {})[slot] = value
            optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
        learner.ema.load_state_dict(below("ema."))
    except (RuntimeError, KeyError, ValueError) as error:
        raise ProdmError(f"{path} does not fit these settings: {error}") from error
    learner.step, learner.seconds = content["step"], content["seconds"]
    learner.best = math.inf if content["best"] is None else content["best"]


@dataclass
class _RunningMean:
    """Means of the loss and its parts since they were last taken."""

    sums: dict[str, float] = field(default_factory=dict)
    count: int = 0
    started: float = field(default_factory=time.monotonic)

    def add(self, parts: dict[str, float]) -> None:
        for name, value in parts.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.count += 1

    def means(self) -> dict[str, float]:
        return {name: value / self.count for name, value in self.sums.items()}

    def steps_per_s(self) -> float:
        return self.count / max(time.monotonic() - self.started, 1e-9)


def _done_and_total(
    learner: Learner, settings: TrainingSettings, max_minutes: float | None
) -> tuple[int, int]:
    """Step, and the number of steps that steps or minutes will allow."""
    if max_minutes is None:
        return learner.step, settings.num_steps
    possible = int(learner.step * max_minutes * 60 / max(learner.seconds, 1e-9))
    return learner.step, min(settings.num_steps, max(possible, learner.step))


def _is_over(learner: Learner, settings: TrainingSettings, max_minutes: float | None) -> bool:
    return learner.step >= settings.num_steps or (
        max_minutes is not None and learner.seconds >= 60 * max_minutes
    )


def _learning_rate(
    learner: Learner, settings: TrainingSettings, max_minutes: float | None
) -> float:
    """Linear warm-up, then half a cosine down to zero over the steps or the minutes."""
    progress = learner.step / settings.num_steps
    if max_minutes is not None:
        progress = max(progress, learner.seconds / (60 * max_minutes))
    warmup = min(1.0, (learner.step + 1) / (settings.warmup_steps + 1))
    return settings.learning_rate * warmup * (1 + math.cos(math.pi * min(progress, 1.0))) / 2


def _mix(seed: int, step: int, shard: int) -> int:
    """A seed of its own for the noise of each shard of each step."""
    return (seed * 1_000_003 + step) * 1009 + shard
