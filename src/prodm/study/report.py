"""The report: HTML in one file, CSV tables, figures as PNG and SVG."""

import base64
import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prodm.runs import write_json
from prodm.study.analysis import ALL_READERS, RANK, SIGNIFICANT, Analysis
from prodm.study.criteria import CRITERION_NAMES, CRITERION_TITLES
from prodm.study.figures import draw_figures, format_p
from prodm.study.results import Comment, Placing, Rating, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {**CRITERION_TITLES, RANK: "Overall rank"}
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
STYLE = """
:root { color-scheme: light dark; --line: #d5dbdf; --quiet: #566670; --accent: #0b6b77; }
@media (prefers-color-scheme: dark) { :root { --line: #334047; --quiet: #9dacb4; --accent: #4cc3cf; } }
body { font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
  max-width: 1080px; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.6rem; margin-bottom: 0.2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.quiet { color: var(--quiet); } .warn { border-left: 4px solid #d98e2b; padding-left: 0.8rem; }
table { border-collapse: collapse; margin: 0.8rem 0; width: 100%; font-size: 0.94rem; }
th, td { text-align: left; padding: 0.35rem 0.7rem; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
tr.found td { font-weight: 600; } img { width: 100%; max-width: 1000px; background: #fff; border-radius: 8px; }
.scroll { overflow-x: auto; }
"""  # noqa: E501


def write_report(folder: Path, results: Results, analysis: Analysis) -> None:
    """Write every file of the report into an existing folder."""
    _write_csv(folder / "ratings.csv", Rating, results.ratings)
    _write_csv(folder / "rankings.csv", Placing, results.placings)
    _write_csv(folder / "comments.csv", Comment, results.comments)
    for name in ("summary", "comparisons", "agreement"):
        rows = getattr(analysis, name)
        if rows:
            _write_csv(folder / f"{name}.csv", type(rows[0]), rows)
    places = [f"place_{n + 1}" for n in range(len(results.methods))]
    _write_rows(
        folder / "ranking_summary.csv",
        ["method", "mean_place", *places],
        [[row.method, row.mean_place, *row.counts] for row in analysis.ranking],
    )
    write_json(folder / "report.json", {"title": results.title, **asdict(analysis)})
    images = {}
    for name, figure in draw_figures(results, analysis).items():
        (folder / f"{name}.png").write_bytes(_rendered(figure, "png"))
        images[name] = _rendered(figure, "svg")
        (folder / f"{name}.svg").write_bytes(images[name])
    (folder / "report.html").write_text(_html(results, analysis, images), encoding="utf-8")


def _rendered(figure: "Figure", kind: str) -> bytes:
    """Draw a figure; the same study always gives the same bytes."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "prodm", "svg.fonttype": "path"}):
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    return buffer.getvalue()


def _write_csv(path: Path, row_type: type[Any], rows: Iterable[Any]) -> None:
    _write_rows(path, [f.name for f in fields(row_type)], [list(astuple(row)) for row in rows])


def _write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows([_cell(value) for value in row] for row in rows)


def _cell(value: Any) -> Any:  # noqa: ANN401
    """Keep a spreadsheet from running text as a formula.

    >>> _cell("=1+1"), _cell("fine"), _cell(True)
    ("'=1+1", 'fine', 1)
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return "'" + value
    return value


def _html(results: Results, analysis: Analysis, images: dict[str, bytes]) -> str:
    num_cases, num_readers = len(results.cases), len(results.readers)
    parts = [
        f"<h1>{escape(results.title)}</h1>",
        f'<p class="quiet">Blinded reader study: {num_cases} cases, {num_readers} readers, '
        f"methods {escape(', '.join(results.methods))}. Research use only.</p>",
    ]
    if results.unfinished:
        parts.append(
            '<p class="warn"><strong>Unblinded before the end.</strong> Not finished: '
            f"{escape(', '.join(results.unfinished))}. Missing answers are left out.</p>"
        )
    parts += [
        "<h2>Ratings</h2>",
        "<p>Mean ± standard deviation over all readers and cases; 1 is the lowest, 5 the "
        "highest.</p>",
        _summary_table(results, analysis),
        _image("Violin plots of the ratings", images["violin"]),
        "<h2>Differences</h2>",
        "<p>Wilcoxon signed-rank tests, two-sided, paired by case; differences are averaged over "
        "readers first, because readings of one case are not independent. Holm's correction is "
        "over all tests of a family: the three criteria together, and the ranking.</p>",
        _too_few_cases(results, analysis),
        _comparison_table(analysis, ALL_READERS),
        _image("Box plots of the ratings with p-values", images["box"]),
    ]
    if num_readers > 1:
        parts.append("<h3>Each reader alone</h3>")
        parts += [_comparison_table(analysis, reader) for reader in results.readers]
    parts += ["<h2>Ranking</h2>", _ranking_table(analysis), _friedman(analysis)]
    parts.append(_image("Share of readings by place", images["ranking"]))
    parts += ["<h2>Agreement</h2>", _agreement_text(), _agreement_table(analysis)]
    if results.comments:
        parts += ["<h2>Comments</h2>", _comment_table(results)]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(results.title)}: report</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, words: int, found: Sequence[bool] = ()
) -> str:
    """Return a table whose first ``words`` columns are text and the others numbers."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{'' if n < words else ' class=number'}>{escape(text)}</{tag}>"
            for n, text in enumerate(row)
        )

    body = "".join(
        f"<tr{' class=found' if n < len(found) and found[n] else ''}>{cells('td', row)}</tr>\n"
        for n, row in enumerate(rows)
    )
    return (
        f'<div class="scroll"><table><thead><tr>{cells("th", header)}</tr></thead>\n'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def _summary_table(results: Results, analysis: Analysis) -> str:
    rows = []
    for method in results.methods:
        found = {row.criterion: row for row in analysis.summary if row.method == method}
        cells = [_mean_sd(found.get(name)) for name in CRITERION_NAMES]
        counts = {str(row.num_ratings) for row in found.values()} or {"0"}
        rows.append([method, *cells, "/".join(sorted(counts))])
    header = ["Method", *(TITLES[name] for name in CRITERION_NAMES), "n"]
    return _table(header, rows, words=1)


def _mean_sd(row: Any) -> str:  # noqa: ANN401
    if row is None:
        return "none"
    return f"{row.mean:.2f}" + (f" ± {row.sd:.2f}" if row.sd is not None else "")


def _comparison_table(analysis: Analysis, readers: str) -> str:
    chosen = [row for row in analysis.comparisons if row.readers == readers]
    rows = [
        [
            TITLES[row.criterion],
            f"{row.method} − {row.other}",
            f"{row.mean_difference:+.2f}",
            str(row.num_cases),
            f"{row.statistic:g}",
            format_p(row.p_value).removeprefix("p ").removeprefix("= "),
            format_p(row.p_holm).removeprefix("p ").removeprefix("= "),
        ]
        for row in chosen
    ]
    header = ["Criterion", "Methods", "Difference", "Cases", "W", "p", "p (Holm)"]
    title = "" if readers == ALL_READERS else f"<h4>{escape(readers)}</h4>"
    return title + _table(header, rows, words=2, found=[row.p_holm < SIGNIFICANT for row in chosen])


def _too_few_cases(results: Results, analysis: Analysis) -> str:
    """Say so where even a method that wins every case could not be found."""
    num_tests = sum(
        row.readers == ALL_READERS and row.criterion != RANK for row in analysis.comparisons
    )
    needed = 1
    while num_tests * 2.0 ** (1 - needed) >= SIGNIFICANT:
        needed += 1
    if len(results.cases) >= needed or not num_tests:
        return ""
    return (
        f'<p class="warn">With {len(results.cases)} cases no difference can reach '
        f"p < {SIGNIFICANT} after the correction for {num_tests} tests; it takes {needed}.</p>"
    ).replace("p < ", "p &lt; ")


def _ranking_table(analysis: Analysis) -> str:
    num_places = max((len(row.counts) for row in analysis.ranking), default=0)
    header = ["Method", "Mean place", *(f"Place {n + 1}" for n in range(num_places))]
    rows = [
        [row.method, f"{row.mean_place:.2f}", *(str(count) for count in row.counts)]
        for row in analysis.ranking
    ]
    return _table(header, rows, words=1)


def _friedman(analysis: Analysis) -> str:
    if analysis.friedman_p is None or analysis.friedman_chi2 is None:
        return ""
    return (
        f"<p>Friedman test of mean places by case: χ² = {analysis.friedman_chi2:.2f}, "
        f"{escape(format_p(analysis.friedman_p))}.</p>"
    )


def _agreement_text() -> str:
    return (
        "<p>Quadratic weighted κ (of more than two readers, the mean over pairs); intraclass "
        "correlation, two-way random effects, absolute agreement, of a single reader (with "
        "95 % interval) and of the mean. Each pair is one "
        "method in one case. Within a reader: first against second showing of repeated cases.</p>"
    )


def _agreement_table(analysis: Analysis) -> str:
    rows = [
        [
            row.kind,
            row.readers,
            TITLES[row.criterion],
            str(row.num_pairs),
            "" if row.exact_share is None else f"{100 * row.exact_share:.0f} %",
            _optional(row.weighted_kappa),
            _interval(row.icc_single, row.icc_low, row.icc_high),
            _optional(row.icc_average),
        ]
        for row in analysis.agreement
    ]
    if not rows:
        return "<p>One reader and no repeated cases: there is nothing to compare.</p>"
    header = ["", "Readers", "Criterion", "Pairs", "Same", "κ", "ICC(2,1)", "ICC(2,k)"]
    return _table(header, rows, words=3)


def _optional(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.2f}"


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    if value is None or low is None or high is None:
        return "undefined"
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def _comment_table(results: Results) -> str:
    rows = [[c.reader, c.case, c.labels, c.text] for c in results.comments]
    return _table(["Reader", "Case", "Labels", "Comment"], rows, words=4)


def _image(title: str, svg: bytes) -> str:
    data = base64.b64encode(svg).decode()
    return f'<p><img alt="{escape(title)}" src="data:image/svg+xml;base64,{data}"></p>'
