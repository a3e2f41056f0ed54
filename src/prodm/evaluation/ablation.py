"""Ablations: one setting takes several values, everything else stays.

A settings list in TOML names them; ``prodm/settings/ablations.toml`` is the one that ships:

    [lambda]
    symbol = "λ"
    key = "model.loss.weight"
    values = [0, 10, 15, 20, 40, 80]
    [lambda.with]                        # what else differs from the settings given
    "model.loss.calcium" = "volume"

``trains = false`` marks a setting of the use, not of the training: one network is trained and
used with every value, as the number of jumps.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from prodm.errors import ProdmError
from prodm.evaluation.figures import as_image_tag, draw_curves, save_figure
from prodm.evaluation.presentation import Table, number, with_error
from prodm.evaluation.report import html_page, html_table, provenance
from prodm.runs import fill, read_toml, write_json, write_run_json


@dataclass(frozen=True)
class Ablation:
    """One setting and the values that it takes."""

    name: str
    key: str  # dotted, as in train --set; "jumps" is the number of network calls
    values: tuple[float, ...]
    symbol: str = ""
    trains: bool = True
    with_: dict[str, Any] = field(default_factory=dict)

    def overrides(self, value: float) -> dict[str, Any]:
        """Return the settings, by dotted key, of one value."""
        return {**self.with_, self.key: value} if self.trains else dict(self.with_)


def read_ablation(name: str, path: Path | None = None) -> Ablation:
    """Return one ablation of a settings list, of the one that ships by default."""
    shipped = resources.files("prodm") / "settings" / "ablations.toml"
    with resources.as_file(shipped) as default:
        tables = read_toml(path or default)
    if name not in tables:
        raise ProdmError(f"there is no ablation {name!r}; the list has {', '.join(tables)}")
    values = {"with_" if key == "with" else key: v for key, v in tables[name].items()}
    ablation = fill(Ablation, {"name": name, **values}, f"the ablation {name}")
    if len(ablation.values) < 2:
        raise ProdmError(f"the ablation {name} needs two values or more")
    return ablation


def write_ablation(
    folder: Path,
    ablation: Ablation,
    rows: Sequence[dict[str, Any]],
    start: dict[str, Any],
    settings: Mapping[str, Any],
    inputs: Mapping[str, str],
) -> None:
    """Write the curves and the table of an ablation into an existing folder.

    ``rows`` and ``start``, the row of no correction, are those of Table 2, per patch.
    """
    symbol = ablation.symbol or ablation.name
    write_run_json(folder, settings, inputs)
    content = {"name": ablation.name, "key": ablation.key, "values": list(ablation.values)}
    write_json(folder / "ablation.json", {**content, "rows": list(rows), "no correction": start})
    figure = draw_curves(symbol, ablation.values, rows, start)
    save_figure(figure, folder, "curves")
    table = Table(
        f"{symbol}: {ablation.key}",
        "Per patch; ± is the standard error.",
        (symbol, "Agatston MAE", "grade accuracy, %", "Dice loss", "Pearson r", "n"),
        tuple(
            (
                label,
                with_error(row, "agatston_mae", 2),
                with_error(row, "grade_accuracy_percent", 1),
                with_error(row, "dice_loss", 3),
                number(row["pearson_r"], 3),
                str(row["n"]),
            )
            for label, row in zip(
                ("no correction", *(f"{value:g}" for value in ablation.values)),
                (start, *rows),
                strict=True,
            )
        ),
    )
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    caption = "The paper's four metrics; a ring marks the best value, dots no correction."
    parts = [
        f"<h1>Ablation of {symbol}</h1>",
        '<p class="quiet">Simulated motion on held-out patients. Research use only.</p>',
        html_table(table),
        f"<figure>{as_image_tag(figure, caption)}<figcaption>{caption}</figcaption></figure>",
        "<h2>How it was made</h2>",
        provenance(record),
    ]
    (folder / "report.html").write_text(
        html_page(f"Ablation of {ablation.name}", parts), encoding="utf-8"
    )
