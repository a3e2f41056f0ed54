"""The command that varies one setting: train with each value, evaluate all, draw curves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prodm.cli.terminal import progress_bar, training_report
from prodm.errors import ProdmError

if TYPE_CHECKING:
    from prodm.evaluation.ablation import Ablation
    from prodm.evaluation.methods import Method
    from prodm.pairs.store import Pairs


@click.command()
@click.argument("name", metavar="NAME")
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
    metavar="DIR",
    help="Folder for the runs, the curves and report.html. Finished runs in it are kept.",
)
@click.option(
    "--max-minutes",
    type=click.FloatRange(0, min_open=True),
    required=True,
    help="Training time of each value.",
)
@click.option(
    "--list",
    "list_file",
    type=click.Path(path_type=Path),
    metavar="TOML",
    help="Settings list of your own instead of the one that ships.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="As in prodm train.")
@click.option("--max-patches", type=click.IntRange(1), metavar="N", help="As in prodm evaluate.")
@click.option("--validation-patches", type=click.IntRange(2), default=100, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def ablate(
    name: str,
    settings_file: Path,
    pairs_folder: Path,
    output: Path,
    max_minutes: float,
    list_file: Path | None,
    max_patches: int | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Vary one setting and see what it does.

    NAME is lambda, k, tau, m or jumps; SETTINGS as in prodm train. A second run of the same
    command goes on where the first one stopped.

    Example: prodm ablate lambda compact --pairs pairs -o ablation-lambda --max-minutes 20
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from prodm.evaluation.ablation import read_ablation, write_ablation
    from prodm.pairs.store import Pairs
    from prodm.runs import new_folder

    ablation = read_ablation(name, list_file)
    pairs = Pairs(pairs_folder)
    methods = []
    for value in ablation.values:
        run = output / "runs" / (f"{value:g}" if ablation.trains else "all")
        _train(run, ablation, value, settings_file, pairs, max_minutes, options)
        methods.append(_method(run, ablation, value))
    rows, start = _evaluate(pairs, methods, max_patches, options["seed"])
    settings = {"settings": str(settings_file), "max_minutes": max_minutes, **options}
    inputs = {"pairs": str(pairs.summary["sha256"])}
    inputs |= {method.name: method.sha256 for method in methods if method.sha256}
    with new_folder(output / "result", overwrite=True) as folder:
        write_ablation(folder, ablation, rows, start, settings, inputs)
    if as_json:
        click.echo(json.dumps({"no correction": start, "rows": rows}, indent=2))
        return
    labels = ["no correction", *(f"{ablation.symbol} {value:g}" for value in ablation.values)]
    for label, row in zip(labels, (start, *rows), strict=True):
        click.echo(
            f"{label}: Agatston MAE {row['agatston_mae']:.2f}, grade accuracy "
            f"{row['grade_accuracy_percent']:.1f} %, Dice loss {row['dice_loss']:.3f}"
        )
    click.echo(f"{output / 'result' / 'report.html'} has the curves", err=True)


def _train(
    run: Path,
    ablation: Ablation,
    value: float,
    settings_file: Path,
    pairs: Pairs,
    max_minutes: float,
    options: dict[str, Any],
) -> None:
    """Train with one value, unless that was done before."""
    from prodm.cli.train import settings_values
    from prodm.evaluation.validation import validator
    from prodm.runs import fill
    from prodm.training.loop import TrainingSettings, train
    from prodm.training.run import open_run

    changes = [f"{key}={json.dumps(v)}" for key, v in ablation.overrides(value).items()]
    overrides = (*options["overrides"], *changes)
    settings = fill(
        TrainingSettings, settings_values(settings_file, None, options["seed"], overrides)
    )
    resume = (run / "settings.json").exists()
    validate = validator(
        pairs, count=options["validation_patches"], num_jumps=settings.validation_jumps
    )
    open_run(run, settings, pairs, resume=resume)
    click.echo(f"training {run}", err=True)
    with training_report() as report:
        train(
            settings,
            pairs,
            run,
            validate=validate,
            resume=resume,
            max_minutes=max_minutes,
            report=report,
        )


def _method(run: Path, ablation: Ablation, value: float) -> Method:
    from prodm.evaluation.methods import find_method

    if not ablation.trains and ablation.key != "jumps":
        raise ProdmError(f"without training, only jumps can vary, got {ablation.key!r}")
    jumps = int(value) if ablation.key == "jumps" else None
    return find_method(str(run), num_jumps=jumps, name=f"{ablation.name} = {value:g}")


def _evaluate(
    pairs: Pairs, methods: list[Method], max_patches: int | None, seed: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of Table 2, per patch, of each value and of no correction."""
    from prodm.evaluation.comparison import compare
    from prodm.evaluation.methods import no_correction
    from prodm.evaluation.metrics import summarise
    from prodm.evaluation.patches import select
    from prodm.evaluation.tables import flat

    selection = select(pairs, "test", max_patches=max_patches, seed=seed)
    with progress_bar("patches corrected") as progress:
        comparison = compare(selection, [no_correction(), *methods], seed=seed, progress=progress)
    if not comparison.patches:
        raise ProdmError(f"{pairs.folder} has no moving block with calcium in its test part")
    start, *rows = (
        {"method": results.method.name, **flat(summarise(results.patches))}
        for results in comparison.results
    )
    return rows, start
