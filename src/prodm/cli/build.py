"""The command that builds a store of training pairs."""

import json
import os
from pathlib import Path

import click

from prodm.cli.terminal import progress_bar
from prodm.errors import ProdmError


@click.command()
@click.argument("source", type=click.Path(path_type=Path), required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="PAIRS",
    help="Folder of the store. An unfinished one is resumed.",
)
@click.option(
    "--phantom",
    "num_phantoms",
    type=click.IntRange(1),
    metavar="COUNT",
    help="Make this many phantoms on the fly instead of reading SOURCE.",
)
@click.option(
    "--phantom-settings",
    "phantom_settings_path",
    type=click.Path(path_type=Path),
    metavar="TOML",
    help="Ranges that the phantoms are drawn from, or 'wide', which comes with prodm.",
)
@click.option(
    "--per-scan",
    type=click.IntRange(0),
    default=21,
    show_default=True,
    help="Motions per scan; the 21 profiles take turns.",
)
@click.option(
    "--moving",
    type=click.Choice(["all", "held-out"]),
    default="all",
    show_default=True,
    help="Whose motions to store. Training moves its blocks afresh, so that "
    "'held-out' (validation and test) is enough for it.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--angles",
    "num_angles",
    type=click.IntRange(2),
    metavar="N",
    help="Views per scan; drawn from 180, 360, 540, 720, 1080 by default.",
)
@click.option(
    "--span",
    "span_deg",
    type=click.Choice(["180", "360"]),
    default="180",
    show_default=True,
    help="Degrees that the scanner turns.",
)
@click.option(
    "--random-start/--fixed-start",
    default=False,
    show_default=True,
    help="Let each scan start at an angle of its own.",
)
@click.option(
    "--centred/--not-centred",
    default=False,
    show_default=True,
    help="Subtract the mean displacement of each motion.",
)
@click.option(
    "--background", type=click.Choice(["kept", "reprojected"]), default="kept", show_default=True
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Processes on this machine.  [default: the number of cores]",
)
@click.option(
    "--dask",
    "dask_address",
    metavar="ADDRESS",
    help="Scheduler of a Dask cluster, such as tcp://10.0.0.1:8786.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def build(
    source: Path | None,
    output: Path,
    num_phantoms: int | None,
    phantom_settings_path: Path | None,
    seed: int,
    workers: int | None,
    dask_address: str | None,
    as_json: bool,
    span_deg: str,
    **options: object,
) -> None:
    """Build training pairs from still scans with labelled calcium.

    SOURCE is a COCA root, or a folder of NAME.nii.gz with NAME_calcium.nii.gz beside it.

    Example: prodm build --phantom 4 -o pairs
    """
    from prodm.pairs.build import BuildSettings
    from prodm.pairs.build import build as build_store
    from prodm.pairs.sources import find_sources, phantom_sources
    from prodm.runs import fill, read_settings

    if (source is None) == (num_phantoms is None):
        raise click.UsageError("name either a SOURCE or --phantom COUNT")
    if source is not None and source.resolve() == output.resolve():
        raise ProdmError(f"{output} is the source; choose another place for the store")
    if phantom_settings_path is not None:
        if num_phantoms is None:
            raise click.UsageError("--phantom-settings goes with --phantom COUNT")
        options["phantom"] = read_settings(phantom_settings_path)
    settings = fill(BuildSettings, {"seed": seed, "span_deg": float(span_deg), **options})
    if source is not None:
        sources = find_sources(source)
    else:
        sources = phantom_sources(num_phantoms or 0, seed)
    with progress_bar("scans built") as progress:
        summary = build_store(
            sources,
            output,
            settings,
            workers=workers or os.cpu_count() or 1,
            dask_address=dask_address,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    counts = ", ".join(f"{n} {split}" for split, n in summary["patients"].items())
    click.echo(
        f"{output}: {summary['blocks']} blocks ({summary['calcium_free_blocks']} without "
        f"calcium) of {summary['scans']} scans, {summary['motions']} motions; "
        f"patients: {counts}"
    )
