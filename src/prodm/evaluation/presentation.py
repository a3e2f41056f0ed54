"""Tables as people read them: titles, notes and rows of text, for Markdown and HTML alike."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from prodm.calcium import GRADES
from prodm.evaluation import paper

LEVEL_TITLES = {"patch": "Per patch", "scan": "Per scan"}
METRIC_TITLES = {
    "agatston_mae": "Agatston MAE",
    "grade_accuracy": "grade accuracy",
    "grade_accuracy_percent": "grade accuracy, %",
    "dice_loss": "Dice loss",
    "shifted_dice_loss": "Dice loss after translation",
    "ssim": "SSIM",
    "pearson_r": "Pearson r",
}
NOTHING = "–"
FIXED = "\u00a0"  # a space at which no line breaks


@dataclass(frozen=True)
class Table:
    """Text in rows; the first ``num_words`` columns are words, the others numbers."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_words: int = 1


@dataclass(frozen=True)
class Section:
    """Tables under one heading."""

    title: str
    tables: tuple[Table, ...]


def sections_of(content: dict[str, Any]) -> list[Section]:
    """Return all tables of ``tables_of`` as text."""
    sections = [Section("What was compared", (_methods(content),))]
    for level, tables in content["levels"].items():
        sections.append(Section(LEVEL_TITLES[level], tuple(_level(content, level, tables))))
    sections.append(Section("Calcium that was not there", (_invented(content),)))
    if content["paper"]:
        sections.append(
            Section("Beside the paper", (_paper(content), _paper_table2(), _paper_grades()))
        )
    return sections


def headline(content: dict[str, Any]) -> Table:
    """Return the table to show first: Table 2 per patch, or per scan where there is no patch."""
    level, tables = next(iter(content["levels"].items()))
    rows = tuple(
        (
            row["method"],
            with_error(row, "agatston_mae", 2),
            with_error(row, "grade_accuracy_percent", 1),
            with_error(row, "dice_loss", 3),
            number(row["pearson_r"], 3),
            number(row["ssim"], 3),
        )
        for row in tables["table2"]
    )
    note = f"n = {tables['n']}; ± is the standard error"
    header = ("method", "Agatston MAE", "accuracy, %", "Dice loss", "r", "SSIM")
    return Table(LEVEL_TITLES[level], note, header, rows)


def markdown(sections: Iterable[Section], heading: str) -> str:
    """Return a Markdown document."""
    parts = [f"# {heading}"]
    for section in sections:
        parts.append(f"## {section.title}")
        for table in section.tables:
            parts.append(f"### {table.title}")
            if table.note:
                parts.append(table.note)
            parts.append(_markdown_table(table))
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    lines = [
        table.header,
        tuple("---" if n < table.num_words else "---:" for n in range(len(table.header))),
        *table.rows,
    ]
    return "\n".join("| " + " | ".join(_escaped(cell) for cell in line) + " |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _methods(content: dict[str, Any]) -> Table:
    rows = tuple(
        (
            row["name"],
            row["kind"],
            row["source"],
            (row["sha256"] or NOTHING)[:12],
            number(row["network_calls_per_window"], 0),
            number(row["seconds_per_patch"], 3),
        )
        for row in content["methods"]
    )
    note = (
        f"{content['patches']} patches with calcium and {content['calcium_free_blocks']} blocks "
        f"without, of {content['scans']} scans of {content['patients']} patients, all held out "
        "from training. Network calls are per window, that is per slice; seconds per patch of 16 "
        "slices, on the machine of this run."
    )
    header = ("method", "kind", "source", "sha256", "network calls", "seconds")
    return Table("Methods", note, header, rows, num_words=4)


def _level(content: dict[str, Any], level: str, tables: dict[str, Any]) -> Iterable[Table]:
    unit = "patches" if level == "patch" else "scans, each once per motion"
    yield _table2(content, tables, f"n = {tables['n']} {unit}; ± is the standard error.")
    yield _agreement(tables)
    if tables["differences"]:
        yield _differences(content, tables)
    yield _table3(tables)
    for name, matrix in tables["confusion"].items():
        yield _confusion(name, matrix)
    for title, rows in tables["by"].items():
        yield _grouped(title, rows)
    if tables["coverage"]:
        yield _coverage(tables)


def _table2(content: dict[str, Any], tables: dict[str, Any], note: str) -> Table:
    cost = {row["name"]: row for row in content["methods"]}
    rows = tuple(
        (
            row["method"],
            with_error(row, "agatston_mae", 2),
            with_error(row, "grade_accuracy_percent", 1),
            with_error(row, "dice_loss", 3),
            number(row["pearson_r"], 3),
            with_error(row, "ssim", 4),
            with_error(row, "shifted_dice_loss", 3),
            number(row["mass_kept_percent"], 1),
            number(cost[row["method"]]["network_calls_per_window"], 0),
            number(cost[row["method"]]["seconds_per_patch"], 3),
            str(row["n"]),
        )
        for row in tables["table2"]
    )
    header = (
        "method",
        "Agatston MAE ↓",
        "grade accuracy, % ↑",
        "Dice loss ↓",
        "Pearson r ↑",
        "SSIM ↑",
        "Dice loss after translation ↓",
        "calcium mass kept, %",
        "network calls",
        "seconds per patch",
        "n",
    )
    return Table("Scores and masks (the paper's Table 2, and more)", note, header, rows)


def _agreement(tables: dict[str, Any]) -> Table:
    rows = tuple(
        (
            row["method"],
            number(row["bland_altman"]["bias"], 2, signed=True),
            number(row["bland_altman"]["low"], 1, signed=True),
            number(row["bland_altman"]["high"], 1, signed=True),
            number(row["kappa"], 3),
        )
        for row in tables["table2"]
    )
    note = "Score minus true score (Bland–Altman); κ of the grades with linear weights."
    header = ("method", "bias", "lower limit", "upper limit", "κ")
    return Table("Agreement of scores", note, header, rows)


def _differences(content: dict[str, Any], tables: dict[str, Any]) -> Table:
    metrics = [name for name in tables["differences"][0] if name != "method"]
    decimals = {"agatston_mae": 2, "ssim": 4}
    rows = tuple(
        (row["method"], *(interval(row[name], decimals.get(name, 3)) for name in metrics))
        for row in tables["differences"]
    )
    note = (
        f"Method minus {content['reference']}, with 95 % intervals of a paired bootstrap over "
        f"{content['patients']} patients. An interval without 0 is a difference."
    )
    header = ("method", *(METRIC_TITLES[name] for name in metrics))
    return Table(f"Differences to {content['reference']}", note, header, rows)


def _table3(tables: dict[str, Any]) -> Table:
    cells = {(row["method"], row["grade"]): row for row in tables["table3"]}
    methods = list(dict.fromkeys(method for method, _ in cells))
    counts = {grade: cells[methods[0], grade]["n"] for grade in GRADES}
    present = [grade for grade in GRADES if counts[grade]]
    rows = tuple(
        (
            method,
            *(
                number(cells[method, grade][name], 3)
                for grade in present
                for name in ("precision", "recall", "f1")
            ),
        )
        for method in methods
    )
    sizes = ", ".join(f"{grade} {counts[grade]}" for grade in present)
    note = (
        "Grades: none 0, minimal to 10, mild to 100, moderate to 400, severe above; n of each "
        f"that occurs: {sizes}."
    )
    titles = (f"{grade} {name}" for grade in present for name in ("precision", "recall", "F1"))
    return Table("Grades one by one (the paper's Table 3)", note, ("method", *titles), rows)


def _confusion(name: str, matrix: dict[str, Any]) -> Table:
    rows = tuple(
        (grade, *(number(value, 1) for value in percents), str(sum(counts)))
        for grade, percents, counts in zip(GRADES, matrix["percent"], matrix["counts"], strict=True)
    )
    note = "Rows: the true grade. Columns: the grade found, in per cent of the row."
    return Table(f"Confusion of grades: {name}", note, ("true", *GRADES, "n"), rows)


def _grouped(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    body = tuple(
        (
            row["group"],
            row["method"],
            with_error(row, "agatston_mae", 2),
            with_error(row, "grade_accuracy_percent", 1),
            with_error(row, "dice_loss", 3),
            with_error(row, "shifted_dice_loss", 3),
            str(row["n"]),
        )
        for row in rows
    )
    header = (
        title,
        "method",
        "Agatston MAE",
        "grade accuracy, %",
        "Dice loss",
        "Dice loss after translation",
        "n",
    )
    return Table(f"By {title}", "", header, body, num_words=2)


def _coverage(tables: dict[str, Any]) -> Table:
    rows = tuple(
        (
            row["method"],
            number(100 * row["share"], 1),
            number(row["mean_width"], 1),
            str(row["num_samples"]),
            str(row["n"]),
        )
        for row in tables["coverage"]
    )
    note = (
        "Share of true scores inside the central 90 % interval of several samples. An honest "
        "interval covers 90 %. Methods that draw no noise have none."
    )
    header = ("method", "coverage, %", "mean width", "samples", "n")
    return Table("Coverage of the 90 % interval", note, header, rows)


def _invented(content: dict[str, Any]) -> Table:
    rows = tuple(
        (
            row["method"],
            with_error(row, "percent", 2),
            str(row["blocks"]),
            str(row["lesions"]),
            str(row["n"]),
        )
        for row in content["invented"]
    )
    note = (
        "Calcium-free blocks in which a lesion (130 HU or more over 1 mm² or more) appears that "
        "touches nothing of 130 HU in the input. Less is better; 0 is right."
    )
    header = ("method", "blocks, %", "blocks", "lesions", "n")
    return Table("Invented calcium", note, header, rows)


def _paper(content: dict[str, Any]) -> Table:
    rows = tuple(
        (
            row["method"],
            METRIC_TITLES[row["metric"]],
            number(row["ours"], 3),
            number(row["ours_ratio"], 3),
            row["paper_method"] or NOTHING,
            number(row["paper"], 3),
            number(row["paper_ratio"], 3) if row["paper"] is not None else NOTHING,
        )
        for row in content["paper"]
    )
    note = (
        f"The paper's values are of {paper.NUM_PATCHES} patches of other data, so that only the "
        "ratios to “no correction” compare."
    )
    header = ("method", "metric", "ours", "ratio", "paper's method", "paper", "paper's ratio")
    return Table("Per patch, ours and the paper's", note, header, rows, num_words=2)


def _paper_table2() -> Table:
    start = paper.TABLE_2["none"]
    rows = tuple(
        (
            row.title,
            f"{row.agatston_mae:.3f} ± {row.agatston_mae_se:.3f}",
            f"{row.agatston_mae / start.agatston_mae:.3f}",
            f"{row.grade_accuracy_percent:.3f} ± {row.grade_accuracy_percent_se:.3f}",
            f"{row.grade_accuracy_percent / start.grade_accuracy_percent:.3f}",
            f"{row.dice_loss:.3f} ± {row.dice_loss_se:.3f}",
            f"{row.dice_loss / start.dice_loss:.3f}",
            f"{row.pearson_r:.3f}",
        )
        for row in paper.TABLE_2.values()
    )
    header = (
        "method",
        "Agatston MAE",
        "ratio",
        "grade accuracy, %",
        "ratio",
        "Dice loss",
        "ratio",
        "Pearson r",
    )
    return Table("The paper's Table 2, whole", "", header, rows)


def _paper_grades() -> Table:
    rows = tuple(
        (method, grade, *(f"{value:.3f}" for value in values))
        for method, grades in paper.TABLE_3.items()
        for grade, values in grades.items()
    )
    header = ("method", "grade", "precision", "recall", "F1")
    return Table("The paper's Table 3, whole", "", header, rows, num_words=2)


def number(value: float | None, decimals: int, *, signed: bool = False) -> str:
    """Write a number, or a dash where there is none.

    >>> number(0.12345, 3), number(None, 3), number(2, 1, signed=True)
    ('0.123', '–', '+2.0')
    """
    if value is None:
        return NOTHING
    return f"{value:{'+' if signed else ''}.{decimals}f}".replace("-", "−")


def with_error(row: dict[str, Any], name: str, decimals: int) -> str:
    """Write a mean and its standard error."""
    if row[name] is None:
        return NOTHING
    return f"{number(row[name], decimals)}{FIXED}±{FIXED}{number(row[f'{name}_se'], decimals)}"


def interval(difference: dict[str, float | None], decimals: int) -> str:
    """Write a difference with its interval."""
    value, low, high = (difference[key] for key in ("value", "low", "high"))
    if low is None or high is None:
        return number(value, decimals, signed=True)
    return (
        f"{number(value, decimals, signed=True)} "
        f"({number(low, decimals, signed=True)}{FIXED}to{FIXED}"
        f"{number(high, decimals, signed=True)})"
    )
