"""What an evaluation leaves behind: tables for machines and people, figures, one page.

report.html     all tables and figures, beside the paper's, in one file that needs no other
tables.json     every number
tables.md       the same tables for a document
patches.csv     one line per patch and method, from which every table can be made again
scans.csv       the same per scan
*.pdf *.png     the figures
run.json        command, settings, seed, versions, commit, hashes of inputs
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from prodm.evaluation.comparison import Case, Comparison
from prodm.evaluation.figures import as_image_tag, draw_figures, save_figure
from prodm.evaluation.metrics import Outcome
from prodm.evaluation.presentation import Section, Table, markdown, sections_of
from prodm.runs import write_json, write_run_json

TITLE = "Evaluation of motion correction"
CAPTIONS = {
    "samples": "One patch of each motion family, the slice with most calcium; "
    "SSIM to the still image; window −200 to 500 HU.",
    "confusion-patch": "Confusion of risk grades per patch, in per cent of the true grade.",
    "confusion-scan": "Confusion of risk grades per scan, in per cent of the true grade.",
    "bland-altman-patch": "Agatston scores per patch against the true ones (Bland–Altman).",
    "bland-altman-scan": "Agatston scores per scan against the true ones (Bland–Altman).",
    "profiles": "Agatston error per patch, by motion profile.",
}
STYLE = """
:root { color-scheme: light dark; --line: #d5dbdf; --quiet: #566670; --accent: #0b6b77; }
@media (prefers-color-scheme: dark) { :root { --line: #334047; --quiet: #9dacb4; } }
body { font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
  max-width: 1180px; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.6rem; margin-bottom: 0.2rem; }
h2 { font-size: 1.25rem; margin-top: 2.4rem; border-bottom: 2px solid var(--accent); }
h3 { font-size: 1rem; margin-bottom: 0.2rem; }
.quiet { color: var(--quiet); }
.warn { border-left: 4px solid #d98e2b; padding-left: 0.8rem; }
table { border-collapse: collapse; margin: 0.6rem 0; font-size: 0.9rem; }
th, td { text-align: left; padding: 0.3rem 0.55rem; border-bottom: 1px solid var(--line); }
th { vertical-align: bottom; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; } details { margin: 0.4rem 0; } summary { cursor: pointer; }
figure { margin: 1.2rem 0; } figcaption { color: var(--quiet); font-size: 0.9rem; }
img { max-width: 100%; background: #fff; border-radius: 6px; }
pre { overflow-x: auto; font-size: 0.85rem; border: 1px solid var(--line); padding: 0.6rem; }
"""
FOLDED = ("By ", "Confusion of grades", "The paper's Table")


def write_evaluation(
    folder: Path,
    comparison: Comparison,
    content: dict[str, Any],
    settings: Mapping[str, Any],
    inputs: Mapping[str, str],
) -> None:
    """Write all files of one evaluation into an existing folder."""
    write_run_json(folder, settings, inputs)
    write_json(folder / "tables.json", content)
    sections = sections_of(content)
    (folder / "tables.md").write_text(markdown(sections, TITLE), encoding="utf-8")
    outcomes = {r.method.name: r.patches for r in comparison.results}
    _write_cases(folder / "patches.csv", comparison.patches, outcomes)
    outcomes = {r.method.name: r.scans for r in comparison.results}
    _write_cases(folder / "scans.csv", comparison.scans, outcomes)
    images = {}
    for name, figure in draw_figures(comparison).items():
        save_figure(figure, folder, name)
        images[name] = as_image_tag(figure, CAPTIONS[name])
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    page = _page(sections, images, record)
    (folder / "report.html").write_text(page, encoding="utf-8")


def _write_cases(
    path: Path, cases: Sequence[Case], outcomes: Mapping[str, Sequence[Outcome]]
) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", *Case.__dataclass_fields__, *Outcome.__dataclass_fields__])
        for name, part in outcomes.items():
            for case, outcome in zip(cases, part, strict=True):
                writer.writerow([name, *asdict(case).values(), *asdict(outcome).values()])


def _page(sections: Iterable[Section], images: Mapping[str, str], record: dict[str, Any]) -> str:
    parts = [
        f"<h1>{TITLE}</h1>",
        '<p class="quiet">Simulated motion on held-out patients. Research use only.</p>',
    ]
    placed = set()
    for section in sections:
        parts.append(f"<h2>{escape(section.title)}</h2>")
        parts += [html_table(table) for table in section.tables]
        for name in _figures_of(section.title):
            if name in images:
                placed.add(name)
                parts.append(_figure(name, images[name]))
    parts += [_figure(name, image) for name, image in images.items() if name not in placed]
    parts += ["<h2>How it was made</h2>", provenance(record)]
    return html_page(TITLE, parts)


def _figures_of(title: str) -> tuple[str, ...]:
    level = {"Per patch": "patch", "Per scan": "scan"}.get(title)
    if level is None:
        return ()
    own = (f"confusion-{level}", f"bland-altman-{level}")
    return ("samples", *own, "profiles") if level == "patch" else own


def _figure(name: str, image: str) -> str:
    return f"<figure>{image}<figcaption>{escape(CAPTIONS[name])}</figcaption></figure>"


def provenance(record: dict[str, Any]) -> str:
    """Return what ``run.json`` records, as HTML."""
    rows = [
        ("command", " ".join(record["command"])),
        ("commit", record["commit"] or "installed package"),
        ("seed", str(record["settings"].get("seed", ""))),
        ("python", record["python"]),
        ("machine", record["machine"]),
        *((f"version of {name}", version) for name, version in record["versions"].items()),
        *((f"sha256 of {name}", digest) for name, digest in record["inputs_sha256"].items()),
    ]
    table = Table("", "", ("what", "value"), tuple(rows), num_words=2)
    settings = json.dumps(record["settings"], indent=2)
    return (
        html_table(table)
        + f"<details><summary>Settings</summary><pre>{escape(settings)}</pre></details>"
    )


def html_page(title: str, parts: Iterable[str]) -> str:
    """Return a whole page that needs no other file."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def html_table(table: Table) -> str:
    """Return a table; long ones are folded under their title."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{'' if n < table.num_words else ' class=number'}>{escape(text)}</{tag}>"
            for n, text in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in table.rows)
    note = f'<p class="quiet">{escape(table.note)}</p>' if table.note else ""
    inner = (
        f'{note}<div class="scroll"><table><thead><tr>{cells("th", table.header)}</tr></thead>\n'
        f"<tbody>\n{body}</tbody></table></div>"
    )
    if table.title.startswith(FOLDED):
        return f"<details><summary>{escape(table.title)}</summary>{inner}</details>"
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    return title + inner
