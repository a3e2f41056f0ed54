"""The numbers of a comparison, as content for JSON; ``presentation`` turns them into text.

Two levels have the same tables: ``patch``, each block with calcium on its own, as in the paper;
and ``scan``, all blocks of a scan together, calcium-free scans included.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from prodm.evaluation import paper
from prodm.evaluation.comparison import Case, Comparison, MethodResults
from prodm.evaluation.metrics import Mean, Outcome, Summary, mean_of, summarise
from prodm.evaluation.statistics import (
    bland_altman,
    by_grade,
    confusion,
    coverage,
    linear_kappa,
    paired_differences,
    row_percent,
)
from prodm.pairs.blocks import BLOCK_SHAPE

LEVELS = ("patch", "scan")
AMPLITUDE_EDGES_PX = (4.0, 23 / 3, 34 / 3, 15.0)  # the bands of the simulated amplitudes
AREA_EDGES_MM2 = (1.0, 2.0, 5.0, 10.0, 20.0)
PEAK_EDGES_HU = (200.0, 300.0, 400.0, 600.0)


def tables_of(comparison: Comparison, reference: str | None) -> dict[str, Any]:
    """Return all tables. Differences are to the method named ``reference``, if any."""
    return {
        "patients": len({case.patient for case in comparison.scans}),
        "scans": len({case.scan for case in comparison.scans}),
        "patches": len(comparison.patches),
        "calcium_free_blocks": comparison.num_free_blocks,
        "samples": comparison.num_samples,
        "seed": comparison.seed,
        "reference": reference,
        "methods": [_method(results) for results in comparison.results],
        "levels": {
            level: _level(comparison, level, reference)
            for level in LEVELS
            if (comparison.patches if level == "patch" else comparison.scans)
        },
        "invented": [_invented(results) for results in comparison.results],
        "paper": _beside_the_paper(comparison),
    }


def find_reference(comparison: Comparison) -> str | None:
    """Return the name of the first ProDM; without one, of the first method that corrects."""
    names = [(r.method.kind, r.method.name) for r in comparison.results if r.method.kind != "none"]
    prodm = [name for kind, name in names if kind in ("prodm", "prodm-paper")]
    return next(iter(prodm or [name for _, name in names]), None)


def _method(results: MethodResults) -> dict[str, Any]:
    method = results.method
    num_windows = max(results.num_corrected * BLOCK_SHAPE[0], 1)  # one around each slice
    calls = None if results.num_calls is None else results.num_calls / num_windows
    return {
        "name": method.name,
        "kind": method.kind,
        "source": method.source,
        "sha256": method.sha256,
        "network_calls_per_window": calls,
        "seconds_per_patch": results.seconds_per_patch,
        "training": method.info.get("training"),
    }


def _level(comparison: Comparison, level: str, reference: str | None) -> dict[str, Any]:
    cases = comparison.patches if level == "patch" else comparison.scans
    outcomes = {r.method.name: _outcomes(r, level) for r in comparison.results}
    matrices = {
        name: confusion([o.agatston_true for o in part], [o.agatston_predicted for o in part])
        for name, part in outcomes.items()
    }
    patients = [case.patient for case in cases]
    return {
        "n": len(cases),
        "table2": [
            {
                "method": name,
                **flat(summarise(part)),
                "kappa": linear_kappa(matrices[name]),
                "bland_altman": asdict(
                    bland_altman(
                        [o.agatston_true for o in part], [o.agatston_predicted for o in part]
                    )
                ),
            }
            for name, part in outcomes.items()
        ],
        "differences": [
            {
                "method": name,
                **{
                    metric: asdict(difference)
                    for metric, difference in paired_differences(
                        part, outcomes[reference], patients, seed=comparison.seed
                    ).items()
                },
            }
            for name, part in outcomes.items()
            if reference is not None and name != reference
        ],
        "table3": [
            {"method": name, **asdict(scores)}
            for name, counts in matrices.items()
            for scores in by_grade(counts)
        ],
        "confusion": {
            name: {"counts": counts.tolist(), "percent": row_percent(counts)}
            for name, counts in matrices.items()
        },
        "by": {title: _grouped(cases, outcomes, key) for title, key in GROUPINGS.items()},
        "coverage": [
            {
                "method": results.method.name,
                **asdict(coverage([case.agatston for case in cases], samples)),
            }
            for results in comparison.results
            if (samples := _samples(results, level))
        ],
    }


def flat(summary: Summary) -> dict[str, Any]:
    """Return a summary as one row of plain numbers; fractions of grades and mass in per cent."""

    def both(name: str, mean: Mean | None, factor: float = 1.0) -> dict[str, float | None]:
        return {
            name: factor * mean.value if mean else None,
            f"{name}_se": factor * mean.error if mean else None,
        }

    return {
        "n": summary.agatston_mae.n,
        **both("agatston_mae", summary.agatston_mae),
        **both("grade_accuracy_percent", summary.grade_accuracy, 100.0),
        **both("dice_loss", summary.dice_loss),
        "pearson_r": summary.pearson_r,
        **both("ssim", summary.ssim),
        **both("shifted_dice_loss", summary.shifted_dice_loss),
        "mass_kept_percent": None if summary.mass_kept is None else 100 * summary.mass_kept,
    }


def _outcomes(results: MethodResults, level: str) -> list[Outcome]:
    return results.patches if level == "patch" else results.scans


def _samples(results: MethodResults, level: str) -> list[list[float]]:
    """Scores that stand for what a method leaves open, calibrated where its weights say how."""
    samples = results.patch_samples if level == "patch" else results.scan_samples
    calibration = results.method.calibration.get(level)
    return [list(calibration.scores(s)) for s in samples] if calibration else samples


def band(value: float, edges: Sequence[float], unit: str) -> tuple[int, str]:
    """Return the number and the name of the band that a value falls in; edges begin a band.

    >>> [band(value, (2.0, 5.0), "mm²")[1] for value in (1, 2, 5)]
    ['< 2 mm²', '2 to 5 mm²', '≥ 5 mm²']
    """
    number = sum(value >= edge for edge in edges)
    if number == 0:
        return number, f"< {edges[0]:.3g} {unit}"
    if number == len(edges):
        return number, f"≥ {edges[-1]:.3g} {unit}"
    return number, f"{edges[number - 1]:.3g} to {edges[number]:.3g} {unit}"


GROUPINGS: dict[str, Callable[[Case], tuple[int, str]]] = {
    "family": lambda case: (0, case.family),
    "profile": lambda case: (0, case.profile),
    "amplitude": lambda case: band(case.amplitude_px, AMPLITUDE_EDGES_PX, "px"),
    "largest lesion": lambda case: band(case.largest_lesion_mm2, AREA_EDGES_MM2, "mm²"),
    "peak density": lambda case: band(case.peak_hu, PEAK_EDGES_HU, "HU"),
}


def _grouped(
    cases: Sequence[Case],
    outcomes: dict[str, list[Outcome]],
    key: Callable[[Case], tuple[int, str]],
) -> list[dict[str, Any]]:
    members: dict[tuple[int, str], list[int]] = {}
    for n, case in enumerate(cases):
        members.setdefault(key(case), []).append(n)
    return [
        {"group": group[1], "method": name, **flat(summarise([part[n] for n in members[group]]))}
        for group in sorted(members)
        for name, part in outcomes.items()
    ]


def _invented(results: MethodResults) -> dict[str, Any]:
    hit = [float(count > 0) for count in results.invented]
    share = mean_of(hit) if hit else None
    return {
        "method": results.method.name,
        "n": len(hit),
        "blocks": int(sum(hit)),
        "lesions": sum(results.invented),
        "percent": 100 * share.value if share else None,
        "percent_se": 100 * share.error if share else None,
    }


def _beside_the_paper(comparison: Comparison) -> list[dict[str, Any]]:
    """Our patches and the paper's: each value, and its ratio to "no correction" there."""
    if not comparison.patches:
        return []
    ours = {r.method.name: flat(summarise(r.patches)) for r in comparison.results}
    start = next((ours[r.method.name] for r in comparison.results if r.method.kind == "none"), None)
    rows = []
    for results in comparison.results:
        printed = paper.paper_row(results.method.kind)
        for metric in ("agatston_mae", "grade_accuracy_percent", "dice_loss", "pearson_r"):
            own = ours[results.method.name][metric]
            theirs = getattr(printed, metric) if printed else None
            rows.append(
                {
                    "method": results.method.name,
                    "metric": metric,
                    "ours": own,
                    "ours_ratio": _ratio(own, start[metric] if start else None),
                    "paper_method": printed.title if printed else None,
                    "paper": theirs,
                    "paper_ratio": _ratio(theirs, getattr(paper.TABLE_2["none"], metric)),
                }
            )
    return rows


def _ratio(value: float | None, start: float | None) -> float | None:
    return value / start if value is not None and start else None
