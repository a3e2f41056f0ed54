"""``prodm bench``: speed, side by side with the obvious alternative, in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prodm.cli.terminal import progress_bar


@click.group()
def bench() -> None:
    """Measure speed beside the obvious alternative, in one run.

    Example: prodm bench simulate
    """


@bench.command()
@click.option("--angles", type=click.IntRange(60), default=720, show_default=True)
@click.option(
    "--size", type=click.IntRange(96, 512), help="Crop the slices to so many pixels, for a look."
)
@click.option(
    "--picture-angles",
    type=click.IntRange(60),
    default=180,
    show_default=True,
    help="Views of the runs whose pictures are compared.",
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Also write JSON."
)
def simulate(angles: int, size: int | None, picture_angles: int, json_path: Path | None) -> None:
    """Race the motion simulator against the paper's Algorithm 1 as printed.

    Takes some minutes: the printed algorithm is run in full on every slice that the moving
    calcium reaches.

    Example: prodm bench simulate --json bench.json
    """
    from prodm.benchmarks.simulation import race
    from prodm.runs import write_json

    with progress_bar("bench simulate") as progress:
        result = race(
            num_angles=angles, size_px=size, picture_angles=picture_angles, progress=progress
        )
    if json_path is not None:
        write_json(json_path, result)
    _print_simulation(result)


def _print_simulation(result: dict[str, Any]) -> None:
    slices, rows, columns = result["shape"]
    click.echo(
        f"phantom {slices} x {rows} x {columns}, calcium in {result['calcium_slices']} slices, "
        f"{result['num_angles']} views, {result['cores']} cores"
    )
    block = " x ".join(str(length) for length in result["block_shape"])
    for title, table in (("whole slices", "whole_slices"), (f"block {block}", "block")):
        click.echo(f"\n{title:<26} {'seconds':>10} {'core-s':>10} {'times faster':>13}")
        for row in result[table]:
            click.echo(
                f"{row['name']:<26} {row['wall_s']:>10.4g} {row['core_s']:>10.4g} "
                f"{row['times_faster']:>13.1f}"
            )
    click.echo(
        f"\n{'picture beside literal':<26} {'r':>10} {'r, calcium':>10} {'Agatston':>13} "
        f"{'literal':>10}"
    )
    for row in result["pictures"]:
        click.echo(
            f"{row['profile']:<26} {row['correlation']:>10.5f} "
            f"{row['correlation_of_calcium']:>10.5f} {row['agatston_fast']:>13.1f} "
            f"{row['agatston_literal']:>10.1f}"
        )
