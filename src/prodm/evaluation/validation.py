"""The check-up during training: a fixed set of validation patches, corrected and judged."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from prodm.evaluation.metrics import Outcome, Summary, judge, measure, summarise
from prodm.evaluation.patches import Patch, correct_and_judge, load_patches
from prodm.model import normalise, to_hu
from prodm.model.baselines import Predict
from prodm.model.motions import FoundMotion
from prodm.model.phasing import Separator, in_focus, separate_by_network
from prodm.model.sampler import correct_blocks
from prodm.model.scan import correct_hu_by_phase
from prodm.pairs.store import Pairs

# What helps a separator is measured by the correction that it then makes.
HELPERS: dict[str, Callable[[Separator, tuple[Predict, int]], Separator]] = {
    "focuser": lambda separator, helper: replace(separator, focuser=helper),
    "placer": lambda separator, helper: replace(separator, placer=helper),
    "polisher": lambda separator, helper: replace(separator, polisher=helper),
}


def validator(
    pairs: Pairs,
    *,
    count: int,
    num_jumps: int,
    seed: int = 0,
    method: str = "prodm",
    separator: Separator | None = None,
) -> Callable[[Predict, int], dict[str, float]]:
    """Return the function that training calls to measure its network.

    A separator is measured by the correction by phase that it makes possible, a reader by the
    correction that undoes the motions that it reads through its ``separator``, and a focuser, a
    placer or a polisher by the correction by phase with its ``separator``, and what that has.
    """
    patches = load_patches(pairs, "validation", with_calcium=True, count=count, seed=seed)

    def validate(predict: Predict, num_slices: int) -> dict[str, float]:
        def correct(moving_hu: NDArray[np.float32]) -> NDArray[np.float32]:
            if method == "separator":
                return one_by_one(moving_hu, Separator(predict, num_slices))
            if method in HELPERS and separator is not None:
                return one_by_one(moving_hu, HELPERS[method](separator, (predict, num_slices)))
            return correct_hu(predict, moving_hu, num_slices, num_jumps=num_jumps, seed=seed)

        def one_by_one(moving_hu: NDArray[np.float32], phased: Separator) -> NDArray[np.float32]:
            """Correct patches of as many scans by phase."""
            return np.concatenate(
                [correct_hu_by_phase(patch[None], phased, seed=seed) for patch in moving_hu]
            )

        if method == "reader" and separator is not None:
            reading = replace(separator, reader=(predict, num_slices))
            outcomes = [_judge_reading(patch, reading) for patch in patches]
        else:
            outcomes = correct_and_judge(patches, correct)
        return as_metrics(summarise(outcomes))

    return validate


def _judge_reading(patch: Patch, separator: Separator) -> Outcome:
    """Judge a patch whose motion is undone as it was read."""
    block = torch.from_numpy(patch.moving.astype(np.float32))
    seen = separate_by_network(block[None], separator)
    moving = block - seen.background_hu[0]
    path = separator.read(moving, seen.still_hu[0]) if moving.any() else None
    corrected = block if path is None else in_focus(block, moving, FoundMotion.from_path(path))
    return judge(corrected.numpy(), measure(patch.still, patch.background, patch.row.spacing_mm))


def uncorrected(pairs: Pairs, *, count: int, seed: int = 0) -> dict[str, float]:
    """Return the metrics of the same patches as they are."""
    patches = load_patches(pairs, "validation", with_calcium=True, count=count, seed=seed)
    return as_metrics(summarise(correct_and_judge(patches, lambda moving_hu: moving_hu)))


def correct_hu(
    predict: Predict,
    moving_hu: NDArray[np.float32],
    num_slices: int,
    *,
    num_jumps: int | None,
    seed: int,
) -> NDArray[np.float32]:
    """Correct blocks [N, Z, Y, X] in HU; what the network's range clips keeps its excess."""
    generator = torch.Generator().manual_seed(seed)
    moving = torch.from_numpy(moving_hu)
    image = normalise(moving)
    corrected = correct_blocks(
        lambda windows: predict(windows, generator, num_jumps), image, num_slices
    )
    hu: NDArray[np.float32] = (moving + to_hu(corrected) - to_hu(image)).numpy()
    return hu


def as_metrics(summary: Summary) -> dict[str, float]:
    """Return the means of a summary by name."""
    return {
        "agatston_mae": summary.agatston_mae.value,
        "grade_accuracy": summary.grade_accuracy.value,
        "dice_loss": summary.dice_loss.value,
        "shifted_dice_loss": summary.shifted_dice_loss.value,
        "pearson_r": 0.0 if summary.pearson_r is None else summary.pearson_r,
    }
