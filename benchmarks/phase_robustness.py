"""Where the correction by phase breaks, and whether its residual says so.

The same blocks of held-out patients are moved by the same motions in different ways: as the method
supposes, and with what it leaves out. Each is corrected with the true background given (what the
search alone can do, for the sharpest image and for the least negative one), by ``phase`` without
weights, and, with --separator, by a separator network. Prints tables as Markdown; --json keeps
every single result.

    python benchmarks/phase_robustness.py PAIRS --json robustness.json
    python benchmarks/phase_robustness.py PAIRS --blocks 3 --cases reference "fan beam"

    python benchmarks/phase_robustness.py PAIRS --separator WEIGHTS --reader WEIGHTS \
        --focuser WEIGHTS --only phase-net --json net.json
    python benchmarks/phase_robustness.py --show robustness.json net.json

The third form adds one separation to an earlier run; the last shows both without any run.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage, stats

from prodm.benchmarks.robustness import CASES, INNER, Block, Seen
from prodm.errors import ProdmError
from prodm.evaluation.metrics import Outcome, judge, measure
from prodm.model.classical import correct_without_weights
from prodm.model.phasing import (
    Phased,
    correct_by_phase,
    separate_by_network,
)
from prodm.model.search import SearchSettings
from prodm.pairs.store import BlockRow, Pairs
from prodm.runs import write_json


def choose_blocks(pairs: Pairs, count: int) -> list[Block]:
    """Take blocks with calcium from the validation patients, one patient after the other."""
    by_patient: dict[str, list[BlockRow]] = {}
    for row in pairs.blocks:
        if row.split == "validation" and row.calcium_voxels:
            by_patient.setdefault(row.patient, []).append(row)
    rounds = itertools.zip_longest(*by_patient.values())
    chosen: list[Block] = []
    for row in itertools.chain.from_iterable(rounds):
        if row is None or len(chosen) == count:
            continue
        background = pairs.read("background", row)
        excess = _wholly_inside(pairs.read("still", row) - background)
        inner = background[INNER]
        if measure(inner + excess[INNER], inner, row.spacing_mm).agatston > 0:
            chosen.append(Block(len(chosen), row, background, excess))
    if not chosen:
        raise ProdmError(f"{pairs.folder} has no block with calcium in its validation part")
    return chosen


def _wholly_inside(excess: NDArray[np.int16]) -> NDArray[np.int16]:
    """Leave out calcium that reaches into the margin: the correction could not see all of it."""
    labels, _ = ndimage.label(excess != 0, np.ones((3, 3, 3)))
    margin = np.ones(excess.shape, dtype=bool)
    margin[:, INNER[1], INNER[2]] = False
    return np.where(np.isin(labels, np.unique(labels[margin])), np.int16(0), excess)


Correct = Callable[[Seen, torch.Generator], Phased]
SEPARATIONS = ("true background", "phase", "phase-net")


def corrections(
    separator: Path | None, reader: Path | None, focuser: Path | None
) -> dict[str, Correct]:
    """Return the ways to tell what moves; all that depends on how they are called is here."""
    settings = SearchSettings()  # as correct_hu_by_phase has it

    def known(seen: Seen, generator: torch.Generator) -> Phased:
        moving, background = torch.from_numpy(seen.moving), torch.from_numpy(seen.background)
        return correct_by_phase(moving, background, settings, generator)

    def classical(seen: Seen, generator: torch.Generator) -> Phased:
        return correct_without_weights(torch.from_numpy(seen.moving), settings, generator)

    ways: dict[str, Correct] = dict(zip(SEPARATIONS, (known, classical), strict=False))
    if separator is None:
        return ways
    from prodm.correction.loading import load_phase

    network = load_phase(separator, reader, focuser).separator

    def learnt(seen: Seen, generator: torch.Generator) -> Phased:
        moving = torch.from_numpy(seen.moving)
        parts = separate_by_network(moving[None], network)
        background, guess = parts.background_hu[0], parts.still_hu[0]
        return correct_by_phase(moving, background, settings, generator, guess, network)

    return {**ways, SEPARATIONS[-1]: learnt}


def run(
    chosen: Sequence[Block], cases: Sequence[str], ways: dict[str, Correct], kept: Path | None
) -> list[dict[str, Any]]:
    """Move, correct and judge every block in every case; keep what is done after each block."""
    results = []
    for block in chosen:
        inner = block.background[INNER]
        truth = measure(inner + block.excess[INNER], inner, block.spacing_mm)
        for case in cases:
            seen = CASES[case](block)
            moved = _errors(judge(seen.moving, truth))
            for name, correct in ways.items():
                generator = torch.Generator().manual_seed(block.number)
                started = time.process_time()
                phased = correct(seen, generator)
                results.append(
                    {
                        "case": case,
                        "separation": name,
                        "scan": block.row.scan,
                        "block": block.row.block,
                        "profile": block.profile,
                        "agatston_true": truth.agatston,
                        "moved": moved,
                        "corrected": _errors(judge(phased.corrected_hu.numpy(), truth)),
                        "residual": None if phased.motion is None else 1 - phased.explained,
                        "seconds": time.process_time() - started,
                    }
                )
        if kept:
            write_json(kept, results)
        print(f"{block.number + 1} of {len(chosen)} blocks", file=sys.stderr)
    return results


def _errors(outcome: Outcome) -> dict[str, float]:
    return {
        "agatston": outcome.absolute_error,
        "dice_loss": outcome.dice_loss,
        "shifted_dice_loss": outcome.shifted_dice_loss,
    }


def error_table(results: Sequence[dict[str, Any]], separation: str) -> str:
    """Return the errors and the residual of each case, as Markdown."""
    lines = [
        f"| {separation} | Agatston MAE | Dice loss | Dice loss after translation "
        "| residual, mean (quartiles) | rank correlation with Dice loss, Agatston error |",
        "|---|---|---|---|---|---|",
    ]
    for case in dict.fromkeys(result["case"] for result in results):
        part = _part(results, separation, case)
        lines.append(
            f"| {case} | {_change(part, 'agatston', 1)} | {_change(part, 'dice_loss', 2)} "
            f"| {_change(part, 'shifted_dice_loss', 2)} | {_residuals(part)} "
            f"| {_correlations(part)} |"
        )
    lines.append(f"| all together | | | | | {_correlations(_part(results, separation, None))} |")
    return "\n".join(lines)


def residual_table(results: Sequence[dict[str, Any]], separation: str) -> str:
    """Return what a high residual foretells, over all cases, as Markdown."""
    part = _part(results, separation, None)
    found = sorted(
        (one for one in part if one["residual"] is not None), key=lambda one: one["residual"]
    )
    lines = [
        f"| {separation}: residual | n | Agatston MAE | Dice loss after translation "
        "| Dice loss lowered | Agatston error lowered |",
        "|---|---|---|---|---|---|",
    ]
    for quarter in range(4):
        group = found[quarter * len(found) // 4 : (quarter + 1) * len(found) // 4]
        if not group:
            continue
        lines.append(
            f"| {group[0]['residual']:.2f} to {group[-1]['residual']:.2f} | {len(group)} "
            f"| {_change(group, 'agatston', 1)} | {_change(group, 'shifted_dice_loss', 2)} "
            f"| {_lowered(group, 'shifted_dice_loss')} | {_lowered(group, 'agatston')} |"
        )
    nothing = [one for one in part if one["residual"] is None]
    if nothing:
        lines.append(
            f"| nothing seems to move | {len(nothing)} | {_change(nothing, 'agatston', 1)} "
            f"| {_change(nothing, 'shifted_dice_loss', 2)} | | |"
        )
    return "\n".join(lines)


def _part(
    results: Sequence[dict[str, Any]], separation: str, case: str | None
) -> list[dict[str, Any]]:
    return [
        result
        for result in results
        if result["separation"] == separation and case in (None, result["case"])
    ]


def _change(part: Sequence[dict[str, Any]], name: str, digits: int) -> str:
    """Means before and after, and the standard error of the change."""
    moved, corrected = (
        np.array([result[when][name] for result in part]) for when in ("moved", "corrected")
    )
    error = np.std(corrected - moved, ddof=1) / np.sqrt(len(part)) if len(part) > 1 else 0.0
    means = f"{moved.mean():.{digits}f} → {corrected.mean():.{digits}f}"
    return f"{means} (± {error:.{digits}f})"


def _lowered(part: Sequence[dict[str, Any]], name: str) -> str:
    lower = [result["corrected"][name] < result["moved"][name] for result in part]
    return f"{100 * np.mean(lower):.0f} %"


def _residuals(part: Sequence[dict[str, Any]]) -> str:
    values = [result["residual"] for result in part if result["residual"] is not None]
    if not values:
        return ""
    low, middle, high = np.percentile(values, (25, 50, 75))
    return f"{np.mean(values):.2f} ({low:.2f}, {middle:.2f}, {high:.2f})"


def _correlations(part: Sequence[dict[str, Any]]) -> str:
    """Spearman's, with the Dice loss after translation and the Agatston error over the score."""
    found = [result for result in part if result["residual"] is not None]
    residual = [result["residual"] for result in found]
    dice = [result["corrected"]["shifted_dice_loss"] for result in found]
    relative = [result["corrected"]["agatston"] / result["agatston_true"] for result in found]
    return ", ".join(_rank_correlation(residual, errors) for errors in (dice, relative))


def _rank_correlation(first: Sequence[float], second: Sequence[float]) -> str:
    if len(set(first)) < 3 or len(set(second)) < 3:
        return "–"
    return f"{stats.spearmanr(first, second).statistic:+.2f}"


def main() -> None:
    """Run the cases and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", type=Path, nargs="?", help="store made by prodm build")
    parser.add_argument("--blocks", type=int, default=12, help="of as many patients as there are")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--separator", type=Path, help="weights of a separator network")
    parser.add_argument("--reader", type=Path, help="and of a reader of motions")
    parser.add_argument("--focuser", type=Path, help="and of a focuser")
    parser.add_argument("--json", type=Path, help="write every result here")
    parser.add_argument("--only", nargs="+", choices=SEPARATIONS, help="separations to try")
    parser.add_argument("--show", type=Path, nargs="+", help="show the results of earlier --json")
    arguments = parser.parse_args()
    if arguments.show:
        parts = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.show]
        results = list(itertools.chain.from_iterable(parts))
    elif arguments.pairs:
        chosen = choose_blocks(Pairs(arguments.pairs), arguments.blocks)
        ways = corrections(arguments.separator, arguments.reader, arguments.focuser)
        if arguments.only:
            ways = {name: way for name, way in ways.items() if name in arguments.only}
        if not ways:
            parser.error("phase-net needs --separator WEIGHTS")
        results = run(chosen, arguments.cases, ways, arguments.json)
    else:
        parser.error("name a store of pairs, or --show FILE")
    for table in (error_table, residual_table):
        for separation in dict.fromkeys(result["separation"] for result in results):
            print(table(results, separation), end="\n\n")
    num_blocks = len({(result["scan"], result["block"]) for result in results})
    num_scans = len({result["scan"] for result in results})
    print(f"{num_blocks} blocks of {num_scans} patients in each case.")


if __name__ == "__main__":
    try:
        main()
    except ProdmError as error:
        sys.exit(str(error))
