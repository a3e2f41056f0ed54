"""The log of a training: a CSV that grows line by line, and a picture of it at the end."""

import csv
from pathlib import Path
from typing import Any

COLUMNS = (
    "step",
    "seconds",
    "loss",
    "learning_rate",
    "validation_agatston_mae",
    "validation_grade_accuracy",
    "validation_dice_loss",
    "validation_pearson_r",
)


class Log:
    """Rows of ``log.csv``; columns beyond the known ones are appended as they come."""

    def __init__(self, path: Path, *, writes: bool) -> None:
        self.path = path
        self.writes = writes
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                self.rows = list(csv.DictReader(file))

    def keep_until(self, step: int) -> None:
        """Forget what was logged after a step, before it is done again."""
        self.rows = [row for row in self.rows if int(row["step"]) <= step]
        self._write()

    def add(self, step: int, seconds: float, values: dict[str, float]) -> None:
        """Append a line."""
        row = {"step": step, "seconds": f"{seconds:.1f}"}
        self.rows.append(row | {name: f"{value:.6g}" for name, value in values.items()})
        self._write()

    def draw(self, path: Path) -> None:
        """Draw the loss and the validation error over the steps."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3.5), layout="constrained")
        left, right = figure.subplots(1, 2)
        curves = (
            (left, "loss", "training loss"),
            (right, "validation_agatston_mae", "validation Agatston MAE"),
        )
        for axes, column, label in curves:
            points = [(int(r["step"]), float(r[column])) for r in self.rows if r.get(column)]
            axes.plot(*zip(*points, strict=True) if points else ((), ()), color="black")
            axes.set(xlabel="step", ylabel=label)
        if any(row.get("loss") for row in self.rows):
            left.set_yscale("log")
        figure.savefig(path, dpi=120)

    def _write(self) -> None:
        if not self.writes:
            return
        extra = sorted({name for row in self.rows for name in row} - set(COLUMNS))
        partial = self.path.with_name(f".{self.path.name}.partial")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*COLUMNS, *extra])
            writer.writeheader()
            writer.writerows(self.rows)
        partial.replace(self.path)
