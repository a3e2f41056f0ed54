"""What limits the correction by phase: parts of the truth in place of what is estimated.

    python benchmarks/phase_limits.py PAIRS [--separator WEIGHTS] [--reader WEIGHTS] \
        [--focuser WEIGHTS] [--placer WEIGHTS] [-n 40]

Blocks of validation patients, moved by back-projection. The truth is known, so each part of the
method can be replaced by it: the separation (the background that the simulator kept, as it is or
smoothed over a few pixels, with a gate that is open where calcium shows by more than 20 HU), the
place (the translation that fits the still lesion best), and the motion. The last row corrects the
still blocks, where the right answer is to change nothing.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from prodm.correction.loading import load_phase, shipped_weights
from prodm.errors import ProdmError
from prodm.evaluation.metrics import Outcome, judge, measure, summarise
from prodm.evaluation.patches import Patch, load_patches
from prodm.evaluation.validation import as_metrics
from prodm.model import HIGH_HU, LOW_HU
from prodm.model.focusing import focus, look_again
from prodm.model.motions import FoundMotion, place, put_back
from prodm.model.phasing import (
    STILL_HU,
    Separation,
    Separator,
    correct_by_phase,
    in_focus,
    separate_by_network,
    settle_block,
)
from prodm.model.reading import what_shows
from prodm.model.search import SearchSettings, search
from prodm.motion.trajectory import Trajectory
from prodm.pairs.store import Pairs
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

SEARCH = SearchSettings()  # as correct_hu_by_phase has it
Moving = Callable[[Patch], Tensor]  # what is taken to move
Find = Callable[[Patch, Tensor, torch.Generator], FoundMotion]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--separator", type=Path, default=None)
    parser.add_argument("--reader", type=Path, default=None)
    parser.add_argument("--focuser", type=Path, default=None)
    parser.add_argument("--placer", type=Path, default=None)
    parser.add_argument("-n", type=int, default=40)
    parser.add_argument("--seed", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    separator = load_phase(
        arguments.separator or shipped_weights("separator"),
        arguments.reader or shipped_weights("reader"),
        arguments.focuser or shipped_weights("focuser"),
        arguments.placer,
    ).separator
    pairs = Pairs(arguments.pairs)
    patches = load_patches(
        pairs, "validation", with_calcium=True, count=arguments.n, seed=arguments.seed
    )
    print("| corrected with | Agatston MAE | grade accuracy | Dice loss | best translation | r |")
    print("|---|---|---|---|---|---|")
    for name, correct in methods(pairs, separator).items():
        generator = torch.Generator().manual_seed(0)
        outcomes = [_judged(patch, correct(patch, generator)) for patch in patches]
        m = as_metrics(summarise(outcomes))
        print(
            f"| {name} | {m['agatston_mae']:.1f} | {m['grade_accuracy']:.1%} | "
            f"{m['dice_loss']:.3f} | {m['shifted_dice_loss']:.3f} | {m['pearson_r']:.3f} |",
            flush=True,
        )


def methods(
    pairs: Pairs, separator: Separator
) -> dict[str, Callable[[Patch, torch.Generator], Tensor]]:
    """Return the rows of the table."""

    def separation(hu: Tensor) -> Separation:
        seen = separate_by_network(hu[None], separator)
        return Separation(seen.background_hu[0], seen.still_hu[0])

    def learnt(patch: Patch) -> Tensor:
        return _hu(patch.moving) - separation(_hu(patch.moving)).background_hu

    def true(patch: Patch) -> Tensor:
        return _hu(patch.moving) - _hu(patch.background)

    def smooth(patch: Patch) -> Tensor:
        scale = HIGH_HU - LOW_HU
        return scale * what_shows(_hu(patch.moving) / scale, _hu(patch.background) / scale)

    def drawn(patch: Patch, moving: Tensor, generator: torch.Generator) -> FoundMotion:
        return search(moving, SEARCH, generator)[0]

    def found(patch: Patch, moving: Tensor, generator: torch.Generator) -> FoundMotion:
        path = separator.read(moving, separation(_hu(patch.moving)).still_hu)
        return search(moving, SEARCH, generator, path)[0]

    def settled(patch: Patch, moving: Tensor, generator: torch.Generator) -> FoundMotion:
        motion = found(patch, moving, generator)
        odds = separation(_hu(patch.moving)).still_hu / STILL_HU
        if motion.is_rest:
            return motion
        return settle_block(_hu(patch.moving), moving, odds, motion, separator)

    def placed(patch: Patch, moving: Tensor, generator: torch.Generator) -> FoundMotion:
        return place(found(patch, moving, generator), moving, _still(patch))

    def applied(patch: Patch, moving: Tensor, generator: torch.Generator) -> FoundMotion:
        trajectory = Trajectory.from_dict(pairs.trajectories(patch.row.scan)[patch.motion.motion])
        spacing_z, _, spacing_x = patch.row.spacing_mm
        path_mm = trajectory.displacement(np.arange(NUM_VIEWS) / NUM_VIEWS)
        path = torch.from_numpy(path_mm / (spacing_x, spacing_x, spacing_z)).float()
        start_rad = float(np.deg2rad(trajectory.start_deg))
        angles = phase.view_angles_rad(NUM_VIEWS, start_rad=start_rad)
        return FoundMotion(phase.shift_of(path[:, :2], angles), start_rad, path[:, 2])

    def by(moves: Moving, find: Find) -> Callable[[Patch, torch.Generator], Tensor]:
        def correct(patch: Patch, generator: torch.Generator) -> Tensor:
            moving = moves(patch)
            return in_focus(_hu(patch.moving), moving, find(patch, moving, generator))

        return correct

    def known(moves: Moving, find: Find) -> Callable[[Patch, torch.Generator], Tensor]:
        """With tissue that is known, so that nothing but grain can be left over."""

        def correct(patch: Patch, generator: torch.Generator) -> Tensor:
            moving = moves(patch)
            motion = find(patch, moving, generator)
            return put_back(_hu(patch.moving), moving, motion.focused(moving), motion)

        return correct

    def again(find: Find) -> Callable[[Patch, torch.Generator], Tensor]:
        """With the second look of the focuser, at the place that is found."""

        def correct(patch: Patch, generator: torch.Generator) -> Tensor:
            if separator.focuser is None:
                raise ProdmError("there is no focuser")
            block, moving = _hu(patch.moving), learnt(patch)
            motion = find(patch, moving, generator)
            if motion.is_rest:
                return block
            odds = separation(block).still_hu / STILL_HU
            still = focus(look_again(block, moving, odds, motion), *separator.focuser)
            return put_back(block, moving, still, motion)

        return correct

    def as_it_is(patch: Patch, generator: torch.Generator) -> Tensor:
        return _corrected(_hu(patch.moving), generator)

    def at_rest(patch: Patch, generator: torch.Generator) -> Tensor:
        return _corrected(_hu(patch.still), generator)

    def _corrected(block: Tensor, generator: torch.Generator) -> Tensor:
        seen = separation(block)
        return correct_by_phase(
            block, seen.background_hu, SEARCH, generator, seen.still_hu, separator
        ).corrected_hu

    return {
        "nothing": lambda patch, generator: _hu(patch.moving),
        "`phase-net`": as_it_is,
        "without the focuser": by(learnt, settled),
        "without the focuser, at the place that was found first": by(learnt, found),
        "without the focuser, motions drawn instead of read": by(learnt, drawn),
        "`phase-net` at the true place": again(placed),
        "`phase-net` with the true motion": again(applied),
        "without the focuser, with the true motion": by(learnt, applied),
        "the true tissue, smoothed; search": known(smooth, settled),
        "the true tissue, smoothed; search, at the true place": known(smooth, placed),
        "the true tissue, smoothed; the true motion": known(smooth, applied),
        "the true background, the true motion": known(true, applied),
        "`phase-net`, on the still blocks": at_rest,
    }


def _still(patch: Patch) -> Tensor:
    return (_hu(patch.still) - _hu(patch.background)).clamp(min=0)


def _hu(image: np.ndarray) -> Tensor:
    return torch.from_numpy(image.astype(np.float32))


def _judged(patch: Patch, hu: Tensor) -> Outcome:
    return judge(hu.numpy(), measure(patch.still, patch.background, patch.row.spacing_mm))


if __name__ == "__main__":
    main()
