"""Every method must be able to learn 200 blocks by heart, or it cannot learn at all."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from prodm.anatomy.phantom import PhantomSettings
from prodm.anatomy.plaques import PlaqueSettings
from prodm.correction.loading import load_phase, shipped_weights
from prodm.model.baselines import (
    METHODS,
    AnyNetwork,
    Look,
    ModelSettings,
    build_network,
    build_players,
    build_predict,
)
from prodm.model.bridge import BrownianBridge
from prodm.model.checkpoint import load_network, save_checkpoint
from prodm.model.losses import LossSettings
from prodm.model.network import NetworkSettings
from prodm.pairs.build import BuildSettings, build
from prodm.pairs.sources import phantom_sources
from prodm.pairs.store import Pairs
from prodm.training.lessons import LESSONS
from prodm.training.loop import TrainingSettings, train
from prodm.training.windows import WindowSettings, draw_batch, load_blocks

NUM_BLOCKS = 200
NUM_JUDGED = 20  # batches
NETWORK = NetworkSettings(
    channels=(64, 128), attention=(False, False), num_res_blocks=1, num_head_channels=32, fold=4,
    gated=True,
)  # fmt: skip
WINDOWS = WindowSettings(size=32, moved="stored", calcium_share=1, flips=False, offsets=False)


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


def training_error(settings: TrainingSettings, network: AnyNetwork, pairs: Pairs) -> float:
    """The loss on what was learnt.

    For the GAN, whose loss is a game, and the separator, whose loss is mostly that of telling
    where there is nothing, it is the squared error of the image and of the background.
    """
    blocks = load_blocks(pairs, "train")
    assert sum(len(block.calcium_slices) > 0 for block in blocks) >= NUM_BLOCKS
    (player, *_), total = build_players(settings.model, network, 0, look_of(settings)), 0.0
    predict = build_predict(settings.model, network)
    for number in range(NUM_JUDGED):
        batch = draw_batch(
            pairs, blocks, WINDOWS, num_slices=3, batch_size=32, seed=(1, number),
            radius_pixels=settings.model.loss.radius_pixels,
        )  # fmt: skip
        generator = torch.Generator().manual_seed(number)
        if settings.model.method == "cgan":
            error = functional.mse_loss(predict(batch.moving, generator), batch.still)
        elif settings.model.method == "separator":
            assert batch.background is not None
            background = predict(batch.moving, generator).chunk(2, dim=1)[0]
            error = functional.mse_loss(background, batch.background)
        else:
            with torch.no_grad():
                error, _ = player(batch, generator)
        total += float(error) / NUM_JUDGED
    return total


def settings_of(method: str) -> TrainingSettings:
    settings = TrainingSettings(
        model=ModelSettings(
            method=method,
            network=NETWORK,
            bridge=BrownianBridge(1000, 0.04),
            loss=LossSettings("neighbourhood", weight=0.001, tau_hu=20),
        ),
        windows=WINDOWS,
        num_steps=1800,
        batch_size=32,
        learning_rate=2e-3,
        weight_decay=0.0,
        ema_decay=0.99,
        validate_every_steps=1800,
    )
    if method == "cgan":
        return replace(
            settings,
            num_steps=600,
            validate_every_steps=600,
            learning_rate=3e-4,
            betas=(0.5, 0.999),  # as published
        )
    if method == "reader":
        levels = replace(NETWORK, channels=(32, 64, 96, 128), attention=(False,) * 4, fold=1)
        return replace(settings, model=replace(settings.model, network=levels), learning_rate=1e-3)
    return settings


def look_of(settings: TrainingSettings) -> Look | None:
    """A reader looks through the separator that ships."""
    if settings.model.method != "reader":
        return None
    look: Look = load_phase(shipped_weights("separator")).separator.look
    return look


def learn(settings: TrainingSettings, pairs: Pairs, run: Path, init: Path | None = None) -> Path:
    run.mkdir()
    measure = {"agatston_mae": 0.0}
    train(settings, pairs, run, validate=lambda *_: measure, init=init, look=look_of(settings))
    return run / "best.safetensors"


def without_its_last_layer(weights: Path, place: Path) -> Path:
    """Write weights that correct nothing, like an untrained network, but know what to look at."""
    trained = load_network(weights)
    state = trained.network.state_dict()
    for name in ("body.out.2.conv.weight", "body.out.2.conv.bias"):
        state[name] = torch.zeros_like(state[name])
    save_checkpoint(place, state, trained.settings, {})
    return place


@pytest.fixture(scope="module")
def regression(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of plain regression, which learns first."""
    return learn(settings_of("unet"), pairs, tmp_path_factory.mktemp("unet") / "run")


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name not in LESSONS])
def test_every_method_learns_200_blocks(
    method: str, pairs: Pairs, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The GAN starts from what regression looks at (as SRGAN does; Ledig et al., CVPR 2017).

    From nothing it does not start in 1800 steps: the median of all likely corrections is none, so
    that the absolute error has nothing to gain until the windows are known by heart. So its last
    layer is put back to zero, which corrects nothing, and what it learns there is its own.
    """
    settings = settings_of(method)
    if method == "unet":
        weights = request.getfixturevalue("regression")
    else:
        init = None
        if method == "cgan":
            regression = request.getfixturevalue("regression")
            init = without_its_last_layer(regression, tmp_path / "start.safetensors")
        weights = learn(settings, pairs, tmp_path / "run", init)
    trained = load_network(weights).network
    untrained = build_network(settings.model, seed=0)  # corrects nothing
    before, after = (training_error(settings, one.train(), pairs) for one in (untrained, trained))
    if method == "cgan":
        start = load_network(tmp_path / "start.safetensors").network
        assert training_error(settings, start.train(), pairs) == pytest.approx(before)
    print(f"{method}: {before:.3g} without correction, {after:.3g} learnt")
    assert after < 0.5 * before
