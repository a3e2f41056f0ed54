"""Train the compact model with each choice for the same time, and compare on validation patients.

    python benchmarks/choices.py --pairs PAIRS -o DIR --workers 2

Every row is one run of ``prodm train`` on one thread, by the command that the table shows. Runs of
the same cost per step get the same number of steps; folding changes the cost, so those runs get as
many steps as fit into the same processor time. Each trained network then corrects the same
moving blocks of validation patients with equal and with crowded jumps. Finished rows are kept.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

NUM_JUMPS = 4
NUM_PATCHES = 60


@dataclass(frozen=True)
class Choice:
    """One row: what differs from the first, and its cost per step relative to it."""

    name: str
    overrides: tuple[str, ...] = ()
    cost: float = 1.0


# Of every row that does not name another m.
BASE = ("model.bridge.noise_scale=0.2", "windows.random_start_share=1.0")
CHOICES = (
    Choice("as in the table's caption"),
    Choice("m = 2", ("model.bridge.noise_scale=2.0",)),
    Choice("m = 0.04", ("model.bridge.noise_scale=0.04",)),
    Choice("m = 0.01", ("model.bridge.noise_scale=0.01",)),
    Choice("F estimates n_t", ("model.predicts=noise",)),
    Choice("no calcium loss", ("model.loss.calcium=none",)),
    Choice(
        "volume loss as in the paper",
        ("model.loss.calcium=volume", "model.loss.tau_hu=60.0", "model.loss.weight=20.0"),
    ),
    Choice("soft Agatston loss", ("model.loss.calcium=agatston",)),
    Choice("folding 2 x 2", ("model.network.fold=2",), cost=1.5),
    Choice("no folding", ("model.network.fold=1",), cost=4.5),
    Choice("not gated", ("model.network.gated=false",)),
)


def main() -> None:
    """Train what is not trained yet, judge everything, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=range(len(CHOICES)))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.workers) as pool:
        jobs = [pool.submit(_run, number, arguments) for number in arguments.rows]
        rows = [row for job in jobs for row in job.result()]
    (arguments.output / "choices.json").write_text(json.dumps(rows, indent=2), encoding="utf-8")
    print(as_table(rows))


def command(choice: Choice, pairs: Path, run: Path, steps: int) -> list[str]:
    """Return the ``prodm train`` of a row."""
    steps = max(1, round(steps / choice.cost))
    values = [f"num_steps={steps}", f"validate_every_steps={steps}", *BASE, *choice.overrides]
    return [
        *("prodm", "train", "compact", "--pairs", str(pairs), "-o", str(run)),
        *(word for value in values for word in ("--set", value)),
    ]


def _run(number: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Train and judge one row, each in a process of its own."""
    run = arguments.output / f"row-{number:02d}"
    done = run / "judged.json"
    if not done.exists():
        alone = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        words = command(CHOICES[number], arguments.pairs, run, arguments.steps)
        prodm = str(Path(sys.executable).with_name("prodm"))
        resume = ["--resume"] if run.exists() else []
        with (arguments.output / f"row-{number:02d}.log").open("w") as log:
            train = [prodm, *words[1:], *resume, "--validation-patches", "2"]
            subprocess.run(train, check=True, env=alone, stdout=log, stderr=log)
            judge = [sys.executable, "-c", f"import choices; choices.judge({str(run)!r}, "]
            judge[-1] += f"{str(arguments.pairs)!r})"
            place = {**alone, "PYTHONPATH": str(Path(__file__).parent)}
            subprocess.run(judge, check=True, env=place, stdout=log, stderr=log)
    name = CHOICES[number].name
    return [{"choice": name, **row} for row in json.loads(done.read_text(encoding="utf-8"))]


def judge(run_folder: str, pairs_folder: str) -> None:
    """Write the metrics of a trained network with equal and with crowded jumps."""
    from prodm.evaluation.metrics import summarise
    from prodm.evaluation.patches import correct_and_judge, load_patches
    from prodm.evaluation.validation import as_metrics, correct_hu
    from prodm.model.baselines import build_predict
    from prodm.model.checkpoint import load_network
    from prodm.pairs.store import Pairs

    pairs = Pairs(Path(pairs_folder))
    trained = load_network(Path(run_folder) / "best.safetensors")
    patches = load_patches(pairs, "validation", with_calcium=True, count=NUM_PATCHES, seed=1)
    start = as_metrics(summarise(correct_and_judge(patches, lambda hu: hu)))
    rows = [{"jumps": "no correction", **start}]
    for label, crowding in (("equal", 1.0), ("crowded", 2.0)):
        sampling = replace(trained.settings.sampling, crowding=crowding, num_jumps=NUM_JUMPS)
        settings = replace(trained.settings, sampling=sampling)
        predict = build_predict(settings, trained.network)
        num_slices = settings.network.num_slices

        def correct(hu: Any, predict: Any = predict, num_slices: int = num_slices) -> Any:  # noqa: ANN401
            return correct_hu(predict, hu, num_slices, num_jumps=None, seed=0)

        metrics = as_metrics(summarise(correct_and_judge(patches, correct)))
        rows.append({"jumps": label, **trained.info, **metrics})
    text = json.dumps(rows, indent=2)
    (Path(run_folder) / "judged.json").write_text(text, encoding="utf-8")


def as_table(rows: list[dict[str, Any]]) -> str:
    """Return the rows in Markdown, no correction once."""
    lines = [
        "| choice | steps | jumps | Agatston MAE | grade accuracy | Dice loss | "
        "Dice loss, best shift | r |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for number, row in enumerate(rows):
        if row["jumps"] == "no correction" and number:
            continue
        is_start = row["jumps"] == "no correction"
        cells = [
            "no correction" if is_start else row["choice"],
            str(row.get("steps", "")),
            "" if is_start else row["jumps"],
            f"{row['agatston_mae']:.1f}",
            f"{100 * row['grade_accuracy']:.1f} %",
            f"{row['dice_loss']:.3f}",
            f"{row['shifted_dice_loss']:.3f}",
            f"{row['pearson_r']:.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
