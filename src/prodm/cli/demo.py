"""``prodm demo``: the main job on five made-up patients."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from prodm.cli.terminal import progress_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prodm.demo import Outcome


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("prodm-demo"),
    show_default=True,
    metavar="DIR",
    help="Folder for the results; it appears when all is written.",
)
@click.option(
    "--method",
    metavar="NAME",
    help="What corrects, as in prodm correct.  [default: prodm; network with --weights]",
)
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    help="Trained network (safetensors), instead of the one that ships.",
)
@click.option("--overwrite", is_flag=True, help="Replace DIR if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def demo(
    output: Path, method: str | None, weights: Path | None, overwrite: bool, as_json: bool
) -> None:
    """Show the main job on five made-up patients, one of each grade.

    Each is made from a seed, its calcium is set in motion, corrected, and scored three times:
    still, moving and corrected. DIR gets report.html, demo.png and demo.json. It takes less than
    two minutes on two cores and needs no network.

    Example: prodm demo -o prodm-demo
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads must not take the cores
    from dataclasses import replace

    from prodm.demo import DEMO, run_demo, write_demo
    from prodm.runs import new_folder

    usual = "network" if weights else DEMO.method
    settings = replace(DEMO, method=method or usual, weights=weights)
    with new_folder(output, overwrite=overwrite) as folder:
        with progress_bar("percent") as progress:
            outcomes = run_demo(settings, progress)
        content = write_demo(folder, outcomes, settings)
    if as_json:
        click.echo(json.dumps(content, indent=2, allow_nan=False))
        return
    _print_table(outcomes)
    click.echo(f"\n{output / 'report.html'}\n\nNext, one of these patients step by step:")
    for command in content["next_commands"]:
        click.echo(f"  {command}")
    click.echo(
        "Then put a scan of your own in place of moved/moving.nii.gz, without --tissue still. "
        "Research use only."
    )


def _print_table(outcomes: Sequence[Outcome]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from prodm.calcium import grade
    from prodm.demo.output import interval_text, summary_sentence

    table = Table(
        "patient", "truth", "moving", "corrected", "90 % interval", "error", box=box.SIMPLE_HEAD
    )
    for outcome in outcomes:
        scores = (outcome.still, outcome.moving, outcome.corrected)
        table.add_row(
            str(outcome.case.seed),
            *(f"{score:.0f} {grade(score)}" for score in scores),
            interval_text(outcome),
            outcome.verdict,
        )
    Console().print(table)
    click.echo(summary_sentence(outcomes))
