"""The command that trains a correction."""

import json
import os
from pathlib import Path
from typing import Any

import click

from prodm.errors import ProdmError


@click.command()
@click.argument("settings_file", metavar="SETTINGS", type=click.Path(path_type=Path))
@click.option(
    "--pairs",
    "pairs_folder",
    type=click.Path(path_type=Path),
    required=True,
    help="Store made by prodm build.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="RUN",
    help="Folder of the run.",
)
@click.option("--method", metavar="NAME", help="prodm, prodm-paper, bbdm, ddpm, cgan or unet.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override one setting, e.g. model.bridge.noise_scale=0.04. Repeatable.",
)
@click.option("--resume", is_flag=True, help="Go on where a killed or finished run stopped.")
@click.option(
    "--init",
    type=click.Path(path_type=Path),
    metavar="WEIGHTS",
    help="Start from these weights, of as many blocks or fewer, instead of random ones.",
)
@click.option(
    "--max-minutes",
    type=click.FloatRange(0, min_open=True),
    help="Stop cleanly after this time; the learning rate falls to zero by then.",
)
@click.option("--seed", type=int, help="Of the weights and of all that is drawn.")
@click.option(
    "--separator",
    "separator_file",
    type=click.Path(path_type=Path),
    metavar="WEIGHTS",
    help="Separator that other networks look through.  [default: the one that ships]",
)
@click.option(
    "--reader",
    "reader_file",
    type=click.Path(path_type=Path),
    metavar="WEIGHTS",
    help="Reader that finds motions to learn from.  [default: the one that ships]",
)
@click.option(
    "--findings",
    "num_findings",
    type=click.IntRange(1),
    default=4000,
    show_default=True,
    help="Blocks that are moved, before a focuser, a placer or a polisher learns from them.",
)
@click.option(
    "--findings-of",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Learn from what was found for another run.  [default: find motions]",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Processes that find motions.  [default: the number of cores]",
)
@click.option("--validation-patches", type=click.IntRange(2), default=100, show_default=True)
@click.option("--dry-run", is_flag=True, help="Print the settings in full and stop.")
def train(
    settings_file: Path,
    pairs_folder: Path,
    output: Path,
    method: str | None,
    overrides: tuple[str, ...],
    resume: bool,
    init: Path | None,
    max_minutes: float | None,
    seed: int | None,
    separator_file: Path | None,
    reader_file: Path | None,
    num_findings: int,
    findings_of: Path | None,
    workers: int | None,
    validation_patches: int,
    dry_run: bool,
) -> None:
    """Train a correction on pairs.

    SETTINGS is a TOML file, or one of the names that ship with prodm: compact, separator,
    reader, focuser, placer, polisher, paper. On several GPUs start it with torchrun.

    Example: prodm train compact --pairs pairs -o run --max-minutes 60
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads must not take the cores
    from dataclasses import asdict
    from functools import partial

    from prodm.cli.terminal import progress_bar, training_report
    from prodm.correction.loading import load_phase
    from prodm.evaluation.validation import uncorrected, validator
    from prodm.pairs.store import Pairs
    from prodm.runs import fill
    from prodm.training.kept import FOLDER, make_missing
    from prodm.training.lessons import LESSONS
    from prodm.training.loop import TrainingSettings
    from prodm.training.loop import train as run_training
    from prodm.training.run import open_run

    values = settings_values(settings_file, method, seed, overrides)
    settings = fill(TrainingSettings, values)
    if dry_run:
        click.echo(json.dumps(asdict(settings), indent=2))
        return
    pairs = Pairs(pairs_folder)
    files = _parts(settings.model.method, separator_file, reader_file)
    phased = load_phase(*files) if files else None
    validate = validator(
        pairs,
        count=validation_patches,
        num_jumps=settings.validation_jumps,
        method=settings.model.method,
        separator=None if phased is None else phased.separator,
    )
    inputs = {} if phased is None else {"separator": phased.sha256}
    is_first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun started
    if is_first:
        open_run(output, settings, pairs, resume=resume, inputs=inputs)
    before = uncorrected(pairs, count=validation_patches)
    if is_first:
        click.echo(f"validation without correction: {_sentence(before)}", err=True)
    lesson = LESSONS.get(settings.model.method) if findings_of is None else None
    if is_first and lesson is not None:  # the others wait where they join
        with progress_bar("finding motions") as progress:
            make_missing(
                output / FOLDER,
                pairs,
                lesson.make,
                partial(_load_separator, files),
                settings.windows,
                count=num_findings,
                seed=settings.seed,
                workers=workers or os.cpu_count() or 1,
                progress=progress,
            )
    with training_report() as report:
        result = run_training(
            settings,
            pairs,
            output,
            validate=validate,
            resume=resume,
            init=init,
            max_minutes=max_minutes,
            look=phased.separator.look if phased and settings.model.method == "reader" else None,
            findings_of=findings_of,
            report=report,
        )
    if is_first:
        click.echo(json.dumps({"uncorrected": before, **result}, indent=2))


def _parts(method: str, separator: Path | None, reader: Path | None) -> list[Path]:
    """Return the weights that a method looks through, or refuse those that it does not."""
    from prodm.correction.loading import PARTS, shipped_weights

    # How many of the parts each looks through; placer and polisher are shown what a focuser saw.
    looks_through = {"reader": 1, "focuser": 2, "placer": 3, "polisher": 3}
    num_parts = looks_through.get(method, 0)
    for name, file, least in (("separator", separator, 1), ("reader", reader, 2)):
        if file is not None and num_parts < least:
            users = ", ".join(user for user, count in looks_through.items() if count >= least)
            raise ProdmError(f"--{name} is for training {users}, and this trains a {method}")
    given = {"separator": separator, "reader": reader}
    return [given.get(name) or shipped_weights(name) for name in PARTS[:num_parts]]


def _load_separator(files: list[Path]) -> Any:  # noqa: ANN401 (its import loads torch)
    from prodm.correction.loading import load_phase

    return load_phase(*files).separator


def settings_values(
    settings_file: Path, method: str | None, seed: int | None, overrides: tuple[str, ...]
) -> dict[str, Any]:
    """Return the settings of a file with what the command line says instead."""
    import tomllib

    from prodm.runs import read_settings

    values = read_settings(settings_file)
    if method is not None:
        values.setdefault("model", {})["method"] = method
    if seed is not None:
        values["seed"] = seed
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ProdmError(f"--set takes KEY=VALUE, got {override!r}")
        *tables, name = key.strip().split(".")
        table = values
        for step in tables:
            table = table.setdefault(step, {})
        try:
            table[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            table[name] = text
    return values


def _sentence(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())
