"""The command that compares methods on held-out patches, or on real scans."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prodm.cli.terminal import progress_bar
from prodm.errors import ProdmError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prodm.evaluation.methods import Method
    from prodm.evaluation.presentation import Table


@click.command()
@click.option(
    "--pairs",
    "pairs_folder",
    type=click.Path(path_type=Path),
    help="Store made by prodm build; its test patients are used.",
)
@click.option(
    "--run",
    "runs",
    multiple=True,
    metavar="RUN",
    help="Run folder, weights file, NETWORK+SEPARATOR+READER, or name of a method without weights. "
    "Repeatable.",
)
@click.option(
    "--external",
    "externals",
    multiple=True,
    metavar="MODULE:FUNCTION",
    help="A Python function correct(block) -> block of your own. Repeatable.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="Folder for tables, figures and report.html.",
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Answers drawn of each random method, for the interval of its score.",
)
@click.option(
    "--jumps", type=click.IntRange(1), help="Network calls per window, instead of each run's own."
)
@click.option(
    "--max-patches",
    type=click.IntRange(1),
    metavar="N",
    help="Stop at about this many blocks, whole scans and motions drawn at random.",
)
@click.option(
    "--split",
    type=click.Choice(["test", "validation"]),
    default="test",
    show_default=True,
    help="Which held-out patients.",
)
@click.option("--reference", metavar="NAME", help="Method that differences are taken to.")
@click.option(
    "--coca-nongated",
    "coca_root",
    type=click.Path(path_type=Path),
    metavar="ROOT",
    help="Correct the non-gated COCA scans and compare with their sheet, instead of --pairs.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Processes of one thread each that share the scans of --pairs. The result is the same.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--overwrite", is_flag=True, help="Replace an existing folder.")
@click.option("--json", "as_json", is_flag=True, help="Print tables.json instead of a table.")
def evaluate(
    pairs_folder: Path | None,
    runs: tuple[str, ...],
    externals: tuple[str, ...],
    output: Path,
    jumps: int | None,
    coca_root: Path | None,
    overwrite: bool,
    as_json: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Compare methods: the paper's tables and figures, and ours.

    Differences are to ProDM, the first run of that method, unless --reference names another.

    Example: prodm evaluate --pairs pairs --run run-prodm --run run-unet -o evaluation

    Example: prodm evaluate --coca-nongated coca --run run-prodm -o nongated
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads must not take the cores
    from prodm.runs import new_folder

    if (pairs_folder is None) == (coca_root is None):
        raise click.UsageError("name either --pairs PAIRS or --coca-nongated ROOT")
    with new_folder(output, overwrite=overwrite) as folder:  # refuses before the long work
        methods = find_methods(runs, externals, jumps, tissue_rests=pairs_folder is not None)
        settings = {"runs": runs, "externals": externals, "jumps": jumps, **options}
        if pairs_folder is not None:
            content, table = _on_pairs(folder, pairs_folder, methods, settings)
        else:
            from prodm.cli.evaluate_nongated import evaluate_nongated

            content, table = evaluate_nongated(folder, coca_root or Path(), methods, settings)
    if as_json:
        click.echo(json.dumps(content, indent=2, allow_nan=False))
        return
    print_table(table)
    click.echo(f"{output / 'report.html'} has all tables and figures", err=True)


def find_methods(
    runs: Sequence[str], externals: Sequence[str], jumps: int | None, *, tissue_rests: bool
) -> list[Method]:
    """Return "no correction" and what the command line names, with a name for each.

    In simulated pairs the tissue rests, in patients it moves with its calcium.
    """
    from prodm.evaluation.methods import external_method, find_method, no_correction

    names = [" + ".join(Path(part).name for part in run.split("+")) for run in runs]
    methods = [
        find_method(
            run,
            num_jumps=jumps,
            name=run if names.count(name) > 1 else name,
            tissue_rests=tissue_rests,
        )
        for run, name in zip(runs, names, strict=True)
    ]
    methods = [method for method in methods if method.kind != "none"]
    return [no_correction(), *methods, *(external_method(spec) for spec in externals)]


def _on_pairs(
    folder: Path, pairs_folder: Path, methods: list[Method], settings: dict[str, Any]
) -> tuple[dict[str, Any], Table]:
    from functools import partial

    from prodm.evaluation.comparison import compare
    from prodm.evaluation.patches import select
    from prodm.evaluation.presentation import headline
    from prodm.evaluation.report import write_evaluation
    from prodm.evaluation.tables import find_reference, tables_of
    from prodm.evaluation.workers import compare_with_workers
    from prodm.pairs.store import Pairs

    names = [method.name for method in methods]
    reference = settings["reference"]
    if reference is not None and reference not in names:
        raise ProdmError(f"--reference must be one of {', '.join(names)}, got {reference!r}")
    pairs = Pairs(pairs_folder)
    seed = settings["seed"]
    selection = select(pairs, settings["split"], max_patches=settings["max_patches"], seed=seed)
    with progress_bar("patches corrected") as progress:
        how = {"num_samples": settings["samples"], "seed": seed, "progress": progress}
        if settings["workers"] > 1:
            again = partial(
                find_methods,
                settings["runs"],
                settings["externals"],
                settings["jumps"],
                tissue_rests=True,
            )
            comparison = compare_with_workers(
                selection, methods, again, workers=settings["workers"], **how
            )
        else:
            comparison = compare(selection, methods, **how)
    content = tables_of(comparison, reference or find_reference(comparison))
    inputs = {"pairs": str(pairs.summary["sha256"]), **hashes(methods)}
    write_evaluation(folder, comparison, content, {"pairs": str(pairs_folder), **settings}, inputs)
    return content, headline(content)


def hashes(methods: Sequence[Method]) -> dict[str, str]:
    """Return the hashes of all weights and modules, by method."""
    return {method.name: method.sha256 for method in methods if method.sha256 is not None}


def print_table(table: Table) -> None:
    """Print a table for people."""
    from rich.console import Console
    from rich.table import Table as RichTable

    shown = RichTable(title=table.title, caption=table.note)
    for n, title in enumerate(table.header):
        shown.add_column(title, justify="left" if n < table.num_words else "right")
    for row in table.rows:
        shown.add_row(*row)
    Console().print(shown)
