"""What limits the correction by phase: parts of the truth in place of what is estimated.

    python benchmarks/phase_limits.py PAIRS [--separator WEIGHTS] [-n 40] [--seed 3]

Blocks of validation patients, moved by back-projection. The truth is known, so each part of the
method can be replaced by it: the separation (the background that the simulator kept), the place
(the translation that fits the still lesion best), the motion (fitted between the still lesion and
what moves; along z it is never undone). The last row corrects the still blocks, where the
right answer is to change nothing.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from prodm.correction.correctors import shipped_weights
from prodm.evaluation.metrics import Outcome, judge, measure, summarise
from prodm.evaluation.patches import Patch, load_patches
from prodm.evaluation.validation import as_metrics
from prodm.model.baselines import Predict, build_predict
from prodm.model.checkpoint import load_network
from prodm.model.phasing import Separation, correct_by_phase, separate_by_network
from prodm.model.search import SearchSettings, place, search_blind, search_guided
from prodm.pairs.store import Pairs

SEARCH = SearchSettings(objective="peaked")  # as correct_hu_by_phase has it
LEAST_NEGATIVE = SearchSettings(objective="not negative")
Correct = Callable[[Patch, torch.Generator], Tensor]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--separator", type=Path, default=None)
    parser.add_argument("-n", type=int, default=40)
    parser.add_argument("--seed", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trained = load_network(arguments.separator or shipped_weights("separator"))
    separator = build_predict(trained.settings, trained.network), trained.settings.network
    patches = load_patches(
        Pairs(arguments.pairs), "validation", with_calcium=True, count=arguments.n,
        seed=arguments.seed,
    )  # fmt: skip
    print("| corrected with | Agatston MAE | grade accuracy | Dice loss | best translation | r |")
    print("|---|---|---|---|---|---|")
    for name, correct in methods(separator[0], separator[1].num_slices).items():
        generator = torch.Generator().manual_seed(0)
        outcomes = [_judged(patch, correct(patch, generator)) for patch in patches]
        m = as_metrics(summarise(outcomes))
        print(
            f"| {name} | {m['agatston_mae']:.1f} | {m['grade_accuracy']:.1%} | "
            f"{m['dice_loss']:.3f} | {m['shifted_dice_loss']:.3f} | {m['pearson_r']:.3f} |",
            flush=True,
        )


def methods(predict: Predict, num_slices: int) -> dict[str, Correct]:
    """Return the rows of the table."""

    def seen_by_network(block: Tensor) -> Separation:
        seen = separate_by_network(block[None], predict, num_slices)
        return Separation(seen.background_hu[0], seen.still_hu[0])

    def leave(patch: Patch, generator: torch.Generator) -> Tensor:
        return _hu(patch.moving)

    def phase_net(patch: Patch, generator: torch.Generator) -> Tensor:
        seen = seen_by_network(_hu(patch.moving))
        return correct_by_phase(
            _hu(patch.moving), seen.background_hu, SEARCH, generator, seen.still_hu
        ).corrected_hu

    def without_guess(patch: Patch, generator: torch.Generator) -> Tensor:
        background = seen_by_network(_hu(patch.moving)).background_hu
        return correct_by_phase(_hu(patch.moving), background, SEARCH, generator).corrected_hu

    def placed(patch: Patch, generator: torch.Generator) -> Tensor:
        background = seen_by_network(_hu(patch.moving)).background_hu
        moving = _hu(patch.moving) - background
        motion = place(search_blind(moving, SEARCH, generator), moving, _still(patch))
        return background + motion.undo(moving)

    def fitted(patch: Patch, generator: torch.Generator) -> Tensor:
        background = seen_by_network(_hu(patch.moving)).background_hu
        return _fitted(patch, background)

    def separated(patch: Patch, generator: torch.Generator) -> Tensor:
        moving = _hu(patch.moving) - _hu(patch.background)
        motion = place(search_blind(moving, LEAST_NEGATIVE, generator), moving, _still(patch))
        return _hu(patch.background) + motion.undo(moving)

    def all_known(patch: Patch, generator: torch.Generator) -> Tensor:
        return _fitted(patch, _hu(patch.background))

    def at_rest(patch: Patch, generator: torch.Generator) -> Tensor:
        seen = seen_by_network(_hu(patch.still))
        return correct_by_phase(
            _hu(patch.still), seen.background_hu, SEARCH, generator, seen.still_hu
        ).corrected_hu

    return {
        "nothing": leave,
        "`phase-net`": phase_net,
        "the same, without the guess": without_guess,
        "the same, at the true place": placed,
        "its separation, the true motion": fitted,
        "the true separation and place, blind search": separated,
        "the true separation, the true motion": all_known,
        "`phase-net`, on the still blocks": at_rest,
    }


def _fitted(patch: Patch, background: Tensor) -> Tensor:
    moving = _hu(patch.moving) - background
    return background + search_guided(moving, _still(patch)).undo(moving)


def _still(patch: Patch) -> Tensor:
    return (_hu(patch.still) - _hu(patch.background)).clamp(min=0)


def _hu(image: np.ndarray) -> Tensor:
    return torch.from_numpy(image.astype(np.float32))


def _judged(patch: Patch, hu: Tensor) -> Outcome:
    return judge(hu.numpy(), measure(patch.still, patch.background, patch.row.spacing_mm))


if __name__ == "__main__":
    main()
