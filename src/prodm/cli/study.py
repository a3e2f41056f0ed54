"""``prodm study``: the blinded reader study."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from prodm.cli.terminal import progress_bar

if TYPE_CHECKING:
    from prodm.study.analysis import Analysis
    from prodm.study.cases import CasePatches, CaseSource
    from prodm.study.records import Reader
    from prodm.volume import Index

DEMO_READERS = ("Reader A", "Reader B")
STUDY = click.Path(path_type=Path)


@click.group()
def study() -> None:
    """Let readers judge methods, blinded, in the browser.

    Example: prodm study new -o trial --demo && prodm study serve trial
    """


@study.command()
@click.option("-o", "--output", type=STUDY, required=True, help="Folder of the new study.")
@click.option(
    "--case",
    "case_texts",
    multiple=True,
    metavar="NAME:METHOD=SCAN,...",
    help="A case: one scan per method and, where the scan is larger than the patch, "
    "center=X/Y/Z (LPS mm) or region=MASK.",
)
@click.option(
    "--cases",
    "table",
    type=STUDY,
    help="CSV of cases: case, method, path, and center_xyz_mm or region.",
)
@click.option("--demo", is_flag=True, help="Make the cases from phantoms.")
@click.option(
    "--size",
    "shape",
    nargs=3,
    type=click.IntRange(min=1),
    default=(16, 64, 64),
    show_default=True,
    metavar="Z Y X",
    help="Voxels of a patch.",
)
@click.option(
    "--clip-hu",
    nargs=2,
    type=float,
    metavar="LOW HIGH",
    help="Limit all methods to one range, if one of them has lost the rest.",
)
@click.option("--reader", "readers", multiple=True, help="Name of a reader; more can come later.")
@click.option(
    "--repeats", type=click.IntRange(min=0), default=0, help="Cases that come a second time."
)
@click.option("--title", default="Reader study", show_default=True, help="Shown to readers.")
@click.option("--seed", type=click.IntRange(min=0), help="Redo a study; the default is chance.")
@click.option("--overwrite", is_flag=True, help="Replace a study that has no answers yet.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a summary.")
def new(
    output: Path,
    case_texts: tuple[str, ...],
    table: Path | None,
    demo: bool,
    shape: Index,
    clip_hu: tuple[float, float] | None,
    readers: tuple[str, ...],
    repeats: int,
    title: str,
    seed: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Cut the same patch from the result of every method, blind them, and keep the key apart.

    SCAN is whatever prodm reads, or the output folder of prodm correct.

    Example: prodm study new -o trial --reader Lee --reader Roy
    --case P1:original=p1.nii.gz,unet=p1-unet.nii.gz,prodm=p1-prodm.nii.gz,region=p1-mask.nii.gz
    """
    from prodm.errors import ProdmError
    from prodm.study.cases import check_cases, parse_case, read_case_table
    from prodm.study.making import StudySettings, check_place, new_study

    check_place(output, overwrite=overwrite)
    if clip_hu and not clip_hu[0] < clip_hu[1]:
        raise ProdmError(f"--clip-hu needs LOW below HIGH, got {clip_hu[0]:g} {clip_hu[1]:g}")
    sources = [parse_case(text) for text in case_texts]
    sources += read_case_table(table) if table else []
    if demo and sources:
        raise ProdmError("--demo makes its own cases; leave --case and --cases out")
    if demo:
        from prodm.cli.study_demo import demo_cases

        cases = demo_cases(seed or 0, shape)
        readers = readers or DEMO_READERS
    else:
        check_cases(sources)
        cases = _cut_all(sources, shape, clip_hu)
    settings = StudySettings(title, readers, repeats, seed)
    made = new_study(cases, output, settings, overwrite=overwrite)
    _print_new(output, cases, made, as_json)


def _cut_all(
    sources: list[CaseSource], shape: Index, clip_hu: tuple[float, float] | None
) -> list[CasePatches]:
    from prodm.study.cases import cut_case

    cases = []
    with progress_bar("cases") as progress:
        for number, source in enumerate(sources):
            cases.append(cut_case(source, shape, clip_hu))
            progress(number + 1, len(sources))
    return cases


def _print_new(
    output: Path, cases: list[CasePatches], readers: list[Reader], as_json: bool
) -> None:
    methods = list(cases[0].patches)
    if as_json:
        content = {
            "study": str(output),
            "cases": [case.name for case in cases],
            "methods": methods,
            "readers": [{"name": reader.name, "token": reader.token} for reader in readers],
        }
        click.echo(json.dumps(content, indent=2))
        return
    names = ", ".join(reader.name for reader in readers) or "none yet (study serve --reader NAME)"
    click.echo(f"cases    {len(cases)}")
    click.echo(f"methods  {', '.join(methods)}")
    click.echo(f"readers  {names}")
    click.echo(f"key      {output / 'key'} (the server does not need it; move it away if you like)")
    click.echo(f"next: prodm study serve {output}", err=True)


@study.command()
@click.argument("folder", metavar="STUDY", type=STUDY)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; anything but this machine needs the readers' tokens.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8427, show_default=True, help="0 takes any."
)
@click.option("--reader", "readers", multiple=True, help="Add a reader to the study.")
@click.option(
    "--public-name", "public_names", multiple=True, help="Host name by which readers reach it."
)
@click.option("--tls-certificate", type=STUDY, help="Certificate (PEM), to serve by https.")
@click.option("--tls-key", type=STUDY, help="Its private key (PEM).")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as JSON.")
def serve(
    folder: Path,
    host: str,
    port: int,
    readers: tuple[str, ...],
    public_names: tuple[str, ...],
    tls_certificate: Path | None,
    tls_key: Path | None,
    as_json: bool,
) -> None:
    """Open a study in the browser, on this machine only unless --host says otherwise.

    Example: prodm study serve trial
    """
    from prodm.errors import ProdmError
    from prodm.study.making import add_readers
    from prodm.study.server import Access, bind, make_app, web_server
    from prodm.study.store import AnswerStore

    if (tls_certificate is None) != (tls_key is None):
        raise ProdmError("https needs both --tls-certificate and --tls-key")
    for path in (tls_certificate, tls_key):
        if path is not None and not path.is_file():
            raise ProdmError(f"there is no file {path}")
    add_readers(folder, readers)
    access = Access(host, public_names)
    with AnswerStore(folder) as store:
        if not store.readers():
            raise ProdmError("the study has no readers; add one with --reader NAME")
        app = make_app(folder, store, access)
        server = web_server(app, tls_certificate, tls_key)
        listener = bind(host, port)
        scheme = "https" if tls_certificate else "http"
        name = (*public_names, access.shown_host)[0]
        _print_addresses(
            f"{scheme}://{name}:{listener.getsockname()[1]}/",
            store.readers(),
            with_tokens=not access.is_local,
            as_json=as_json,
        )
        server.run(sockets=[listener])


def _print_addresses(url: str, readers: list[Reader], *, with_tokens: bool, as_json: bool) -> None:
    links = {reader.name: f"{url}#token={reader.token}" for reader in readers}
    if as_json:
        click.echo(json.dumps({"url": url, "readers": links}))
    elif with_tokens:
        click.echo("Give each reader their own address, and to nobody else:")
        for name, link in links.items():
            click.echo(f"  {name}: {link}")
    else:
        click.echo(f"{url}  (readers: {', '.join(links)})")
    click.echo("Answers are saved at every click. Stop with Ctrl+C.", err=True)


@study.command()
@click.argument("folder", metavar="STUDY", type=STUDY)
@click.option(
    "-o", "--output", type=STUDY, help="Folder of the report; the default is STUDY/report."
)
@click.option("--key", type=STUDY, help="The key, if it was moved away from STUDY/key.")
@click.option("--unfinished", is_flag=True, help="Unblind although readers have not finished.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier report.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def report(
    folder: Path,
    output: Path | None,
    key: Path | None,
    unfinished: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Unblind a finished study and analyse it: HTML, CSV and figures.

    Example: prodm study report trial
    """
    from prodm.runs import new_folder, write_run_json
    from prodm.study.analysis import analyse
    from prodm.study.report import write_report
    from prodm.study.results import read_results

    results = read_results(folder, key, unfinished=unfinished)
    analysis = analyse(results)
    output = output or folder / "report"
    with new_folder(output, overwrite=overwrite) as partial:
        write_report(partial, results, analysis)
        write_run_json(partial, {"study": str(folder), "unfinished": unfinished})
    if as_json:
        click.echo(json.dumps(asdict(analysis), indent=2))
    else:
        _print_summary(results.methods, analysis)
    click.echo(f"report: {output / 'report.html'}", err=True)


def _print_summary(methods: tuple[str, ...], analysis: Analysis) -> None:
    from rich.console import Console
    from rich.table import Table

    from prodm.study.criteria import CRITERIA

    table = Table("Method", *(criterion.title for criterion in CRITERIA), "Mean place")
    for method in methods:
        cells = {row.criterion: row for row in analysis.summary if row.method == method}
        places = [f"{row.mean_place:.2f}" for row in analysis.ranking if row.method == method]
        shown = [
            f"{cells[c.name].mean:.2f} ± {cells[c.name].sd or 0:.2f}" if c.name in cells else ""
            for c in CRITERIA
        ]
        table.add_row(method, *shown, *(places or [""]))
    Console().print(table)
