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
    default=90,
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
        f"\n{'all calcium, ' + str(result['picture_angles']) + ' views':<26} {'r':>9} "
        f"{'r, calcium':>11} {'Agatston':>9} {'literal, sharp':>15} {'raced':>8} {'still':>8}"
    )
    for row in result["pictures"]:
        click.echo(
            f"{row['profile']:<26} {row['correlation']:>9.5f} "
            f"{row['correlation_of_calcium']:>11.5f} {row['agatston_fast']:>9.1f} "
            f"{row['agatston_literal']:>15.1f} {row['agatston_raced']:>8.1f} "
            f"{row['agatston_still']:>8.1f}"
        )


@bench.command()
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Also write JSON."
)
def train(json_path: Path | None) -> None:
    """Measure how many windows each network learns from per core-second, and its memory.

    Example: prodm bench train
    """
    from prodm.benchmarks.training import race
    from prodm.runs import write_json

    with progress_bar("bench train") as progress:
        result = race(progress=progress)
    if json_path is not None:
        write_json(json_path, result)
    click.echo(f"{'network':<26} {'parameters':>12} {'windows/core-s':>15} {'memory MiB':>11}")
    for row in result["rows"]:
        click.echo(
            f"{row['name']:<26} {row['parameters']:>12,} {row['samples_per_core_s']:>15.2f} "
            f"{row['memory_mib']:>11.0f}"
        )


@bench.command()
@click.option(
    "--weights", type=click.Path(path_type=Path), help="Trained network; default: the shipped one."
)
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True)
@click.option("--samples", type=click.IntRange(1), default=8, show_default=True)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Also write JSON."
)
def correct(weights: Path | None, steps: int, samples: int, json_path: Path | None) -> None:
    """Measure the correction of a scan of 512 x 512 x 135 voxels with five blocks.

    The network alone, in batches and window by window, and held to the phase; then the error of
    the score by the number of steps, on four moved phantoms.

    Example: prodm bench correct
    """
    from prodm.benchmarks.correction import race
    from prodm.runs import write_json

    with progress_bar("bench correct") as progress:
        result = race(weights, steps=steps, samples=samples, progress=progress)
    if json_path is not None:
        write_json(json_path, result)
    _print_correction(result)


def _print_correction(result: dict[str, Any]) -> None:
    click.echo(
        f"{result['rows'][0]['blocks']} blocks, {result['steps']} steps, "
        f"{result['samples']} samples"
    )
    click.echo(f"\n{'method':<20} {'seconds':>9} {'in networks':>12} {'peak MiB':>9}")
    for row in result["rows"]:
        click.echo(
            f"{row['method']:<20} {row['seconds']:>9.1f} {row['network_share']:>12.0%} "
            f"{row['memory_mib']:>9.0f}"
        )
    click.echo(
        f"{'window by window':<20} {result['window_by_window_s']:>9.1f}   "
        f"the network alone, {result['times_faster']:.1f} times slower"
    )
    if result["errors"]:
        click.echo(f"\n{'method, steps':<20} {'mean error of the score':>24}")
    for name, error in result["errors"].items():
        click.echo(f"{name:<20} {error:>24.1f}")
