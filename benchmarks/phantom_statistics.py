"""Calcium of the phantoms beside calcium of real patients.

Makes phantoms, finds the slice-wise lesions in their labels, and prints percentiles beside
those of 6,235 lesions of 450 annotated gated scans, as Markdown.

    python benchmarks/phantom_statistics.py --count 200 --workers 2
"""

import argparse
import itertools
import json
import os
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from scipy import ndimage

from prodm import agatston
from prodm.anatomy.phantom import Phantom, make_phantom
from prodm.calcium import Vessel, grade

PERCENTILES = (5, 10, 25, 50, 75, 90, 95, 99)
QUARTILES = (25, 50, 75)
REAL = {
    "lesion area, mm²": (0.76, 1.15, 2.2, 4.65, 9.9, 19.6, 30.9, 68.6),
    "peak, HU": (152, 166, 205, 302, 463, 674, 814, 1101),
    "mean, HU": (141, 148, 166, 203, 260, 330, 376, 475),
    "Agatston score of a patient": (1.9, 5.7, 26, 114, 439, 1217, 1877, 3829),
    "lesions of a patient": (1, 1, 2, 8, 21, 37, 46, 65),
}
AREA_EDGES_MM2 = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, np.inf)
REAL_PEAK_BY_AREA = (149, 183, 243, 350, 473, 591, 758)
REAL_VESSELS = {"LAD": 37.0, "RCA": 37.0, "LCX": 21.0, "LM": 4.5}
REAL_GRADES = {"minimal": 15.0, "mild": 34.0, "moderate": 24.0, "severe": 28.0}

Row = tuple[float, float, float, int]  # area, peak, mean, vessel


def lesions(phantom: Phantom) -> list[Row]:
    """Return area, peak, mean and vessel of each patch of labels that hangs together in a slice."""
    in_plane = np.zeros((3, 3, 3), bool)
    in_plane[1] = True
    numbered, _ = ndimage.label(phantom.calcium, in_plane)
    pixel_mm2 = phantom.still.spacing_mm[1] * phantom.still.spacing_mm[2]
    rows = []
    for number, window in enumerate(ndimage.find_objects(numbered), start=1):
        mask = numbered[window] == number
        hu = phantom.still.hu[window][mask]
        vessel = int(np.bincount(phantom.calcium[window][mask]).argmax())
        rows.append((float(mask.sum() * pixel_mm2), float(hu.max()), float(hu.mean()), vessel))
    return rows


def measure(seed: int) -> tuple[list[Row], float, float]:
    """Return a phantom's lesions, its Agatston score and the seconds of processor time."""
    started = time.process_time()
    phantom = make_phantom(seed)
    seconds = time.process_time() - started
    return lesions(phantom), agatston.score(phantom.still, phantom.calcium).agatston, seconds


def table(results: list[tuple[list[Row], float, float]]) -> str:
    """Return the comparison as Markdown."""
    with_calcium = [result for result in results if result[0]]
    rows = np.array([row for found, _, _ in with_calcium for row in found])
    ours = {
        "lesion area, mm²": rows[:, 0],
        "peak, HU": rows[:, 1],
        "mean, HU": rows[:, 2],
        "Agatston score of a patient": np.array([score for _, score, _ in with_calcium]),
        "lesions of a patient": np.array([len(found) for found, _, _ in with_calcium]),
    }
    lines = ["| percentile | | " + " | ".join(map(str, PERCENTILES)) + " | worst quartile |"]
    lines.append("|" + "---|" * (len(PERCENTILES) + 3))
    for name, values in ours.items():
        found = np.percentile(values, PERCENTILES)
        off = [
            found[PERCENTILES.index(q)] / REAL[name][PERCENTILES.index(q)] - 1 for q in QUARTILES
        ]
        worst = max(off, key=abs)
        lines.append(f"| {name} | real | " + " | ".join(f"{v:.4g}" for v in REAL[name]) + " | |")
        lines.append(
            "| | phantom | " + " | ".join(f"{v:.4g}" for v in found) + f" | {worst:+.0%} |"
        )
    lines += ["", "| area, mm² | " + " | ".join(
        f"{a:g}–{b:g}" for a, b in itertools.pairwise(AREA_EDGES_MM2)
    ) + " |", "|" + "---|" * 8]  # fmt: skip
    lines.append("| median peak, real | " + " | ".join(map(str, REAL_PEAK_BY_AREA)) + " |")
    bins = np.digitize(rows[:, 0], AREA_EDGES_MM2[1:-1])
    peaks = [np.median(rows[bins == n, 1]) if (bins == n).any() else np.nan for n in range(7)]
    lines.append("| phantom | " + " | ".join(f"{peak:.0f}" for peak in peaks) + " |")
    lines += ["", "| share, % | " + " | ".join([*REAL_VESSELS, *REAL_GRADES]) + " |",
              "|" + "---|" * 9]  # fmt: skip
    shares = [*REAL_VESSELS.values(), *REAL_GRADES.values()]
    lines.append("| real | " + " | ".join(f"{share:g}" for share in shares) + " |")
    vessels = [100 * float((rows[:, 3] == Vessel[name]).mean()) for name in REAL_VESSELS]
    scored = [grade(score) for _, score, _ in with_calcium if score > 0]
    grades = [100 * scored.count(name) / len(scored) for name in REAL_GRADES]
    lines.append("| phantom | " + " | ".join(f"{share:.1f}" for share in vessels + grades) + " |")
    seconds = np.mean([seconds for _, _, seconds in results])
    lines += ["", f"{len(results)} phantoms, {len(rows)} lesions, "
              f"{len(results) - len(with_calcium)} patients without calcium; "
              f"{seconds:.1f} s of one core per phantom; {platform.system()} "
              f"{platform.machine()}, {os.cpu_count()} cores."]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Make the phantoms and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write every lesion here")
    arguments = parser.parse_args()
    results = []
    with ProcessPoolExecutor(arguments.workers) as pool:
        seeds = range(arguments.seed, arguments.seed + arguments.count)
        for result in pool.map(measure, seeds):
            results.append(result)
            print(f"\r{len(results)} of {arguments.count}", end="", file=sys.stderr)
    print(file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(json.dumps(results))
    print(table(results))


if __name__ == "__main__":
    main()
