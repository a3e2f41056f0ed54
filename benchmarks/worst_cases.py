"""Look at the patches on which a method errs most: a table, what they share, and a picture.

    python benchmarks/worst_cases.py EVALUATION --method NAME
    python benchmarks/worst_cases.py EVALUATION --method NAME --pairs PAIRS --run RUN -o worst.png

EVALUATION is a folder of ``prodm evaluate``. The twenty patches with the largest absolute error of
the Agatston score are listed, in Markdown, and compared with all patches. For the picture the
worst of them are corrected again, with the seed and the number of jumps of the evaluation, and
their scores are compared with those that it found.
"""

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from prodm.calcium import GRADES, grade
from prodm.errors import ProdmError
from prodm.evaluation.comparison import Case, seed_of
from prodm.evaluation.figures import INK, WINDOW_HU, rendered
from prodm.evaluation.methods import Method, find_method
from prodm.evaluation.metrics import Outcome, agatston, calcium_mask, measure
from prodm.evaluation.patches import Selection, select
from prodm.evaluation.presentation import Section, Table, markdown
from prodm.evaluation.tables import GROUPINGS
from prodm.pairs.blocks import without_margin
from prodm.pairs.store import Pairs, Split
from prodm.runs import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_WORST = 20
NO_CORRECTION = "no correction"
SHOWN_PIXELS = 48  # width of what is shown around the calcium
TITLES = ("still", "moving", "corrected")


@dataclass(frozen=True)
class Patch:
    """One patch as the method left it, and as it was without correction."""

    case: Case
    corrected: Outcome
    uncorrected: Outcome

    @property
    def key(self) -> tuple[str, int, int]:
        """Scan, block and motion."""
        return self.case.scan, self.case.block or 0, self.case.motion

    @property
    def error(self) -> float:
        """Corrected score minus true score."""
        return self.corrected.agatston_predicted - self.corrected.agatston_true

    @property
    def is_worse(self) -> bool:
        """Whether the corrected score is further from the truth than the moving one."""
        return self.corrected.absolute_error > self.uncorrected.absolute_error


@dataclass(frozen=True, eq=False)
class Shown:
    """One patch corrected again: slices around the calcium, and scores of the whole patch."""

    patch: Patch
    images: tuple[NDArray[Any], ...]  # [Y, X], as in TITLES
    scores: tuple[float, ...]


def main() -> None:
    """Print the tables; draw the picture where it is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("evaluation", type=Path, help="folder of prodm evaluate")
    parser.add_argument("--method", required=True, help="name in its tables")
    parser.add_argument("--pairs", type=Path, help="store that was evaluated, for the picture")
    parser.add_argument("--run", help="the method as prodm evaluate takes it, for the picture")
    parser.add_argument("--number", type=int, default=6, help="patches in the picture (default 6)")
    parser.add_argument("-o", "--output", type=Path, help="PNG file for the picture")
    arguments = parser.parse_args()
    if arguments.output and (arguments.pairs is None or arguments.run is None):
        parser.error("a picture needs --pairs and --run")
    if not 1 <= arguments.number <= NUM_WORST:
        parser.error(f"--number must be from 1 to {NUM_WORST}, got {arguments.number}")
    try:
        patches = read_patches(arguments.evaluation, arguments.method)
        worst = worst_of(patches)
        print(markdown([_section(worst, patches)], f"Worst cases: {arguments.method}"), end="")
        if arguments.output:
            _picture(worst[: arguments.number], arguments)
    except (ProdmError, OSError) as error:
        sys.exit(f"Error: {error}")


def read_patches(folder: Path, method: str) -> list[Patch]:
    """Read the patches of one method beside those of no correction."""
    path = folder / "patches.csv"
    read: dict[str, list[tuple[Case, Outcome]]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                read.setdefault(row["method"], []).append((_case(row), _outcome(row)))
    except (KeyError, ValueError) as error:
        raise ProdmError(f"{path} is not a table of prodm evaluate: {error}") from error
    for name in (method, NO_CORRECTION):
        if name not in read:
            raise ProdmError(f"{path} has no method {name!r}, but {', '.join(read) or 'none'}")
    return [
        Patch(case, corrected, uncorrected)
        for (case, corrected), (_, uncorrected) in zip(
            read[method], read[NO_CORRECTION], strict=True
        )
    ]


def _case(row: dict[str, str]) -> Case:
    return Case(
        scan=row["scan"],
        patient=row["patient"],
        block=int(row["block"]),
        motion=int(row["motion"]),
        profile=row["profile"],
        amplitude_px=float(row["amplitude_px"]),
        agatston=float(row["agatston"]),
        largest_lesion_mm2=float(row["largest_lesion_mm2"]),
        peak_hu=float(row["peak_hu"]),
    )


def _outcome(row: dict[str, str]) -> Outcome:
    return Outcome(**{name: float(row[name]) for name in Outcome.__dataclass_fields__})


def worst_of(patches: Iterable[Patch]) -> list[Patch]:
    """Return the patches with the largest absolute error of the score, worst first."""
    return sorted(patches, key=lambda patch: (-abs(patch.error), patch.key))[:NUM_WORST]


def _section(worst: Sequence[Patch], patches: Sequence[Patch]) -> Section:
    total = sum(abs(patch.error) for patch in patches)
    part = sum(abs(patch.error) for patch in worst)
    places = {(patch.case.scan, patch.case.block) for patch in worst}
    note = (
        f"{len(places)} blocks of {len({patch.case.patient for patch in worst})} patients; "
        f"{100 * part / total if total else 0:.0f} % of the error of all {len(patches)} patches. "
        "Lesion and peak are the largest and the densest of the still patch."
    )
    title = f"The {len(worst)} patches with the largest Agatston error"
    return Section("Per patch", (_cases(worst, title, note), _shares(worst, patches)))


def _cases(worst: Sequence[Patch], title: str, note: str) -> Table:
    header = (
        "scan", "block", "motion", "amplitude, px", "true score", "moved score",
        "corrected score", "error", "Dice loss", "lesion, mm²", "peak, HU",
    )  # fmt: skip
    rows = tuple(
        (
            patch.case.scan,
            str(patch.case.block),
            patch.case.profile,
            f"{patch.case.amplitude_px:.1f}",
            f"{patch.case.agatston:.1f}",
            f"{patch.uncorrected.agatston_predicted:.1f}",
            f"{patch.corrected.agatston_predicted:.1f}",
            f"{patch.error:+.1f}",
            f"{patch.corrected.dice_loss:.3f}",
            f"{patch.case.largest_lesion_mm2:.1f}",
            f"{patch.case.peak_hu:.0f}",
        )
        for patch in worst
    )
    return Table(title, note, header, rows, num_words=3)


def _true_grade(case: Case) -> tuple[int, str]:
    name = grade(case.agatston)
    return GRADES.index(name), name


def _shares(worst: Sequence[Patch], patches: Sequence[Patch]) -> Table:
    groupings: dict[str, Callable[[Case], tuple[int, str]]] = {
        **{title: key for title, key in GROUPINGS.items() if title != "profile"},
        "true grade": _true_grade,
    }
    rows = []
    for title, key in groupings.items():
        for group in sorted({key(patch.case) for patch in patches}):
            shares = (
                _percent([key(patch.case) == group for patch in part]) for part in (worst, patches)
            )
            rows.append((title, group[1], *shares))
    answers: dict[str, Callable[[Patch], bool]] = {
        "further off than without correction": lambda patch: patch.is_worse,
        "too high": lambda patch: patch.error > 0,
        "too low": lambda patch: patch.error < 0,
    }
    for answer, holds in answers.items():
        shares = (_percent([holds(patch) for patch in part]) for part in (worst, patches))
        rows.append(("corrected score", answer, *shares))
    header = ("what", "group", f"worst {len(worst)}, %", f"all {len(patches)}, %")
    return Table("What they have in common", "", header, tuple(rows), num_words=2)


def _percent(answers: Sequence[bool]) -> str:
    return f"{100 * sum(answers) / max(len(answers), 1):.0f}"


def _picture(worst: Sequence[Patch], arguments: argparse.Namespace) -> None:
    record = json.loads((arguments.evaluation / "run.json").read_text(encoding="utf-8"))
    settings, hashes = record["settings"], record["inputs_sha256"]
    pairs = Pairs(arguments.pairs)
    method = find_method(arguments.run, num_jumps=settings["jumps"])
    if pairs.summary["sha256"] != hashes["pairs"]:
        raise ProdmError(f"{arguments.pairs} is not the store that {arguments.evaluation} is of")
    if method.sha256 != hashes.get(arguments.method):
        raise ProdmError(f"{arguments.run} is not what was evaluated as {arguments.method}")
    shown = correct_again(pairs, worst, method, split=settings["split"], seed=settings["seed"])
    with replacing(arguments.output) as partial:
        partial.write_bytes(rendered(draw(shown), "png"))
    differing = [sentence for patch in shown if (sentence := difference(patch))]
    agree = f"{len(shown) - len(differing)} of {len(shown)} patches score as in the evaluation"
    print("\n".join([*differing, agree]), file=sys.stderr)


def correct_again(
    pairs: Pairs, patches: Sequence[Patch], method: Method, *, split: Split, seed: int
) -> list[Shown]:
    """Correct patches as the comparison did: all blocks of a scan at once, with its seed."""
    wanted = {patch.key: patch for patch in patches}
    everything = select(pairs, split)
    moves = {(scan, motion) for scan, _, motion in wanted}
    motions = {
        scan: tuple(motion for motion in part if (scan, motion.motion) in moves)
        for scan, part in everything.motions.items()
    }
    motions = {scan: part for scan, part in motions.items() if part}
    selection = Selection(pairs, motions, everything.rows)
    shown: dict[tuple[str, int, int], Shown] = {}
    for blocks in selection.read():
        for motion in blocks.motions:
            seen = selection.read_moving(blocks, motion, method.margin).astype(np.float32)
            scan_seed = seed_of(seed, blocks.scan, motion.motion, 0)
            moving, corrected = (
                without_margin(images, method.margin)
                for images in (seen, method.correct(seen, blocks.spacing_mm, scan_seed))
            )
            for n, row in enumerate(blocks.rows):
                key = (row.scan, row.block, motion.motion)
                if key in wanted:
                    truth = measure(blocks.still[n], blocks.background[n], blocks.spacing_mm)
                    three = (blocks.still[n].astype(np.float32), moving[n], corrected[n])
                    shown[key] = Shown(
                        wanted[key],
                        _around_calcium(three, truth.region),
                        tuple(agatston(hu, truth) for hu in three),
                    )
    missing = [key for key in wanted if key not in shown]
    if missing:
        raise ProdmError(f"{pairs.folder} has no scan, block and motion {missing[0]}")
    return [shown[patch.key] for patch in patches]


def _around_calcium(
    volumes: Sequence[NDArray[np.float32]], region: NDArray[np.bool_]
) -> tuple[NDArray[Any], ...]:
    """Cut the slice with most calcium out of each volume, all at the same place."""
    counts = np.sum([calcium_mask(hu, region) for hu in volumes], axis=0)  # [Z, Y, X]
    z = int(counts.sum(axis=(1, 2)).argmax())
    spans = []
    for axis in (0, 1):
        weights = counts[z].sum(axis=1 - axis)
        places = np.arange(len(weights))
        centre = np.average(places, weights=weights) if weights.any() else places.mean()
        start = int(np.clip(round(centre - SHOWN_PIXELS / 2), 0, len(weights) - SHOWN_PIXELS))
        spans.append(slice(start, start + SHOWN_PIXELS))
    return tuple(hu[z][spans[0], spans[1]] for hu in volumes)


def difference(shown: Shown) -> str | None:
    """Return how the scores differ from the evaluation's; None where they do not."""
    patch = shown.patch
    before = (
        patch.case.agatston,
        patch.uncorrected.agatston_predicted,
        patch.corrected.agatston_predicted,
    )
    differing = [
        f"the {title} one scores {now:.1f}, in the evaluation {then:.1f}"
        for title, now, then in zip(TITLES, shown.scores, before, strict=True)
        if not np.isclose(now, then, atol=1e-6)
    ]
    scan, block, motion = patch.key
    where = f"scan {scan}, block {block}, motion {motion}"
    return f"{where}: {'; '.join(differing)}" if differing else None


def draw(shown: Sequence[Shown]) -> "Figure":
    """Draw a row for each patch: still, moving, corrected, with their scores."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.1 * len(TITLES) + 0.6, 2.3 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), len(TITLES), squeeze=False)
    for row, each in zip(axes, shown, strict=True):
        for panel, image, score in zip(row, each.images, each.scores, strict=True):
            panel.imshow(image, cmap="gray", vmin=WINDOW_HU[0], vmax=WINDOW_HU[1])
            panel.set_xticks([])
            panel.set_yticks([])
            panel.set_xlabel(f"Agatston {score:.1f}", fontsize=8, color=INK)
        case = each.patch.case
        label = f"{case.scan}, block {case.block}\n{case.profile}\n{case.amplitude_px:.1f} px"
        row[0].set_ylabel(label, fontsize=7, color=INK)
    for panel, title in zip(axes[0], TITLES, strict=True):
        panel.set_title(title, fontsize=9, color=INK)
    return figure


if __name__ == "__main__":
    main()
