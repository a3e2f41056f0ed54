"""The scores of COCA's non-gated scans: ``scores.xlsx``, one row per scan.

The first sheet has the columns 'filename ' (with a space), LCA, LAD, LCX, RCA and total; LCA
is the left main. Rows are keyed "7A" for the scan in folder 7. In a few rows the total is not
the sum of the vessels; such a row is named and not repaired.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from prodm.calcium import Vessel
from prodm.errors import ProdmError

KEY_COLUMN = "filename"
VESSEL_COLUMNS = {
    "lca": Vessel.LM,
    "lad": Vessel.LAD,
    "lcx": Vessel.LCX,
    "rca": Vessel.RCA,
}
TOTAL_COLUMN = "total"
MAX_ROWS = 100_000
ROUNDING = 0.5  # a total may be rounded to a whole number


@dataclass(frozen=True)
class SheetRow:
    """The scores that the sheet states for one scan."""

    key: str  # as in the sheet
    per_vessel: dict[Vessel, float]
    total: float | None
    problem: str | None  # why the row cannot be used as it is


def scan_id(key: object) -> str:
    """Return the id that a sheet's key or a folder's name stands for.

    >>> [scan_id(key) for key in ("7A", " 7a ", 7, 7.0, "007", "x1")]
    ['7', '7', '7', '7', '7', 'x1']
    """
    if isinstance(key, float) and key.is_integer():
        key = int(key)
    text = str(key).strip().casefold()
    match = re.fullmatch(r"0*(\d+)\s*a?", text)
    return match.group(1) if match else text


def read_sheet(path: Path) -> dict[str, SheetRow]:
    """Return the rows of ``scores.xlsx`` by scan id."""
    table = _table(path)
    header = [str(cell).strip().casefold() if cell is not None else "" for cell in table[0]]
    missing = [name for name in (KEY_COLUMN, *VESSEL_COLUMNS, TOTAL_COLUMN) if name not in header]
    if missing:
        raise ProdmError(
            f"{path.name} needs the columns filename, LCA, LAD, LCX, RCA and total in its first "
            f"row, but {missing[0]!r} is missing"
        )
    rows: dict[str, SheetRow] = {}
    for values in table[1:]:
        cells = dict(zip(header, values, strict=False))
        if cells.get(KEY_COLUMN) is None:
            continue
        row = _row(cells)
        identifier = scan_id(cells[KEY_COLUMN])
        if identifier in rows:
            row = SheetRow(row.key, {}, None, f"the sheet has several rows for {row.key}")
        rows[identifier] = row
    return rows


def _table(path: Path) -> list[tuple[object, ...]]:
    import openpyxl

    try:
        with path.open("rb") as file:
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            try:
                rows = book.worksheets[0].iter_rows(max_row=MAX_ROWS, values_only=True)
                table = [tuple(row) for row in rows]
            finally:
                book.close()
    except OSError as error:
        raise ProdmError(f"cannot read {path.name}: {error.strerror or error}") from error
    except Exception as error:  # openpyxl raises errors of many kinds on a damaged workbook
        raise ProdmError(f"{path.name} is not a readable Excel workbook: {error}") from error
    if not table:
        raise ProdmError(f"{path.name} is empty")
    return table


def _row(cells: dict[str, object]) -> SheetRow:
    key = str(cells[KEY_COLUMN]).strip()
    numbers: dict[str, float] = {}
    for column in (*VESSEL_COLUMNS, TOTAL_COLUMN):
        value = cells.get(column)
        if value is None or not str(value).strip():
            continue
        number = _number(value)
        if number is None:
            return SheetRow(key, {}, None, f"the sheet's {column} is no score: {str(value)[:20]!r}")
        numbers[column] = number
    per_vessel = {
        vessel: numbers[column] for column, vessel in VESSEL_COLUMNS.items() if column in numbers
    }
    total = numbers.get(TOTAL_COLUMN)
    if total is None:
        return SheetRow(key, per_vessel, None, "the sheet states no total")
    vessel_sum = sum(per_vessel.values())
    if abs(total - vessel_sum) > ROUNDING:
        problem = f"the sheet's total {total:g} is not the sum of its vessels, {vessel_sum:g}"
        return SheetRow(key, per_vessel, total, problem)
    return SheetRow(key, per_vessel, total, None)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < float("inf") else None
