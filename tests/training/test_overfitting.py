"""Every method must be able to learn 200 blocks by heart, or it cannot learn at all."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import ndimage

from prodm.anatomy.phantom import PhantomSettings
from prodm.anatomy.plaques import PlaqueSettings
from prodm.evaluation.patches import Patch, load_patches
from prodm.evaluation.validation import correct_hu
from prodm.model.baselines import METHODS, ModelSettings, build_predict
from prodm.model.bridge import BrownianBridge
from prodm.model.checkpoint import load_network
from prodm.model.losses import LossSettings, soft_volume_mm3
from prodm.model.network import NetworkSettings
from prodm.model.phasing import separate_by_network
from prodm.pairs.build import BuildSettings, build
from prodm.pairs.sources import phantom_sources
from prodm.pairs.store import Pairs
from prodm.training.loop import TrainingSettings, train
from prodm.training.windows import WindowSettings

NUM_BLOCKS = 200
NUM_JUDGED = 40  # of the blocks
SIZE = 32  # pixels of a window, in the middle of its block
NUM_STEPS = 1800


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Patients with calcium, one motion each."""
    phantom = PhantomSettings(
        num_pixels=320,
        coverage_mm=(84.0, 96.0),
        gated_fraction=1.0,
        slice_spacings_mm=(5.0,),  # so that most lesions lie in one or two slices
        slice_spacing_shares=(1.0,),
        plaques=PlaqueSettings(zero_calcium_fraction=0, count=6),
    )
    settings = BuildSettings(per_scan=1, free_share=0, phantom=phantom)
    folder = tmp_path_factory.mktemp("pairs") / "store"
    build(phantom_sources(84, seed=500), folder, settings, workers=2)
    return Pairs(folder)


@pytest.fixture(scope="module")
def patches(pairs: Pairs) -> list[Patch]:
    found = load_patches(pairs, "train", with_calcium=True)
    assert len(found) >= NUM_BLOCKS
    return [middle_of(patch) for patch in found[:NUM_JUDGED]]


def middle_of(patch: Patch) -> Patch:
    def cut(image: NDArray[np.int16]) -> NDArray[np.int16]:
        edge = (image.shape[-1] - SIZE) // 2
        return image[:, edge : edge + SIZE, edge : edge + SIZE]

    return replace(
        patch,
        still=cut(patch.still),
        background=cut(patch.background),
        moving=cut(patch.moving),
    )


def near_calcium(patch: Patch) -> NDArray[np.bool_]:
    """Where calcium was, and where it went."""
    still = patch.still.astype(float) - patch.background
    moving = patch.moving.astype(float) - patch.background
    near: NDArray[np.bool_] = ndimage.binary_dilation(
        (still > 30) | (np.abs(moving) > 30), np.ones((1, 3, 3))
    )
    return near


def squared_error(patches: list[Patch], given: NDArray[np.float32], wanted: str) -> float:
    """Mean over what is near calcium, in HU squared."""
    errors = [
        (hu - getattr(patch, wanted))[near_calcium(patch)]
        for patch, hu in zip(patches, given, strict=True)
    ]
    return float(np.mean(np.concatenate(errors) ** 2))


def volume_error(patches: list[Patch], given: NDArray[np.float32]) -> float:
    """The paper's calcium loss, over the three slices around most of the calcium."""
    errors = []
    for patch, hu in zip(patches, given, strict=True):
        excess = (patch.still.astype(float) - patch.background).sum(axis=(1, 2))
        middle = min(max(int(excess.argmax()), 1), len(excess) - 2)
        log_volumes = []
        for image in (hu, patch.still):
            window = torch.from_numpy(image[middle - 1 : middle + 2].astype(np.float32))[None]
            spacing_mm = torch.tensor([patch.row.spacing_mm])
            volume = soft_volume_mm3(window, spacing_mm, 60.0, torch.ones_like(window))
            log_volumes.append(float(volume.log1p()))
        errors.append((log_volumes[0] - log_volumes[1]) ** 2)
    return float(np.mean(errors))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_200_blocks(
    method: str, pairs: Pairs, patches: list[Patch], tmp_path: Path
) -> None:
    model = ModelSettings(
        method=method,
        network=NetworkSettings(
            channels=(64, 128), attention=(False, False), num_res_blocks=1,
            num_head_channels=32, fold=4, gated=True,
        ),
        bridge=BrownianBridge(1000, 0.04),
        loss=LossSettings("neighbourhood", weight=0.001, tau_hu=20),
    )  # fmt: skip
    settings = TrainingSettings(
        model=model,
        windows=WindowSettings(
            size=SIZE, moved="stored", calcium_share=1, flips=False, offsets=False
        ),
        num_steps=NUM_STEPS,
        batch_size=32,
        learning_rate=2e-3,
        weight_decay=0.0,
        ema_decay=0.99,
        validate_every_steps=NUM_STEPS,
    )
    (tmp_path / "run").mkdir()
    train(settings, pairs, tmp_path / "run", validate=lambda *_: {"agatston_mae": 0.0})
    trained = load_network(tmp_path / "run" / "best.safetensors")
    predict = build_predict(trained.settings, trained.network)
    moving = np.stack([patch.moving for patch in patches]).astype(np.float32)
    if method == "separator":
        given = separate_by_network(torch.from_numpy(moving), predict, 3).background_hu.numpy()
        before, after = (squared_error(patches, hu, "background") for hu in (moving, given))
    else:
        given = correct_hu(predict, moving, 3, num_jumps=10, seed=0)
        before, after = (squared_error(patches, hu, "still") for hu in (moving, given))
    print(f"{method}: {before**0.5:.1f} HU moved, {after**0.5:.1f} HU corrected")
    if method == "prodm-paper":  # its weight of 20 leaves next to nothing to the image
        before, after = volume_error(patches, moving), volume_error(patches, given)
        print(f"{method}: loss of volume {before:.2g} moved, {after:.2g} corrected")
    assert after < 0.5 * before
