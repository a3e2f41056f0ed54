"""Every method learns, predicts reproducibly, and is what its publication says."""

import dataclasses
from importlib import resources
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from prodm.errors import ProdmError
from prodm.model import to_hu
from prodm.model.baselines import (
    METHODS,
    AnyNetwork,
    GanSettings,
    ModelSettings,
    Player,
    as_published,
    build_network,
    build_players,
    build_predict,
)
from prodm.model.bridge import BrownianBridge
from prodm.model.losses import Batch, LossSettings, lesion_neighbourhoods
from prodm.model.network import NetworkSettings, Predicts, num_parameters
from prodm.model.reading import NUM_ANGLES
from prodm.model.resting import NUM_PLACED
from prodm.model.sampler import SamplingSettings
from prodm.runs import fill, read_toml

TINY = ModelSettings(
    network=NetworkSettings(
        channels=(16, 16),
        attention=(False, False),
        num_res_blocks=1,
        num_head_channels=16,
        norm_groups=4,
        fold=2,
    ),
    bridge=BrownianBridge(noise_scale=0.04),
    loss=LossSettings(calcium="agatston", weight=0.01, tau_hu=20.0),
    sampling=SamplingSettings(num_jumps=3),
    gan=GanSettings(discriminator_channels=8, discriminator_layers=2),
)


def tiny(method: str) -> ModelSettings:
    if method != "reader":
        return dataclasses.replace(TINY, method=method)
    network = dataclasses.replace(TINY.network, channels=(16,) * 4, attention=(False,) * 4)
    return dataclasses.replace(TINY, method=method, network=network)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny_set() -> Batch:
    """Four windows with one large lesion each, moved by smearing it along a row."""
    calcium = torch.zeros(4, 3, 32, 32, dtype=torch.bool)
    for n in range(4):
        calcium[n, :, 6 + 3 * n : 16 + 3 * n, 10 : 17 + n] = True
    still = torch.full((4, 3, 32, 32), 0.24) + 0.7 * calcium
    moving = torch.stack([still.roll(shift, dims=3) for shift in range(-5, 6)]).mean(dim=0)
    lesions = torch.from_numpy(lesion_neighbourhoods(calcium.numpy(), radius_pixels=4))
    spacing_mm = torch.tensor([[3.0, 0.5, 0.5]]).expand(4, 3)
    background = torch.full_like(still, 0.24)
    velocity = torch.tensor([[6.0, 2.0, 0.1], [-5.0, 3.0, 0.2], [4.0, -6.0, 0.0], [1.0, 7.0, 0.3]])
    displacement = torch.linspace(0, 1, 20)[:, None] * velocity[:, None]
    return Batch(
        still, moving, calcium, lesions, spacing_mm, background, displacement, torch.zeros(4)
    )


def set_of(method: str) -> Batch:
    """The same windows; a focuser and a polisher learn their middle slices from five views of them.

    A placer learns where the lesions rest, from views of the tissue with a hole in it.
    """
    batch = tiny_set()
    if method not in ("focuser", "placer", "polisher") or batch.background is None:
        return batch
    if method == "placer":
        place = torch.tensor([[2, 1], [-3, 0], [4, -4], [0, 5]])
        shifted = [
            one.roll((-int(y), -int(x)), (-2, -1))
            for one, (y, x) in zip(batch.calcium, place, strict=True)
        ]
        lesion = 500.0 * torch.stack(shifted)
        tissue = 40.0 - 100.0 * batch.calcium
        views = torch.stack([tissue, lesion], dim=1).flatten(1, 2).repeat(1, NUM_PLACED, 1, 1)
        return dataclasses.replace(batch, views=views, place=place)
    seen = to_hu(batch.moving)
    excess = seen - to_hu(batch.background)
    views = torch.cat([seen, excess, seen, excess.clamp(min=0), torch.full_like(seen, 0.1)], dim=1)
    if method == "polisher":
        clean, blurred = to_hu(batch.background), excess.clamp(min=0)
        views = torch.cat([clean, excess, excess, blurred, blurred], dim=1)
    images = ("still", "moving", "calcium", "lesions", "background")
    middles = {name: getattr(batch, name)[:, 1:2] for name in images}
    return dataclasses.replace(batch, **middles, views=views)


def shown_to(method: str, batch: Batch) -> Tensor:
    if method in ("focuser", "placer", "polisher"):
        assert batch.views is not None
        return batch.views
    return look(batch.moving) if method == "reader" else batch.moving


def look(windows: Tensor) -> Tensor:
    """What a separator would see that knows the tissue and nothing of where calcium rests."""
    return torch.cat([windows - 0.24, torch.full_like(windows, 0.1)], dim=1)


def players_of(settings: ModelSettings, network: AnyNetwork, seed: int) -> tuple[Player, ...]:
    return build_players(settings, network, seed, look if settings.method == "reader" else None)


def train(players: tuple[Player, ...], batch: Batch, num_steps: int) -> list[list[float]]:
    """The loop that the module describes; one list of losses per player."""
    optimisers = [torch.optim.Adam(player.parameters(), lr=1e-3) for player in players]
    losses: list[list[float]] = [[] for _ in players]
    for step in range(num_steps):
        for player, optimiser, history in zip(players, optimisers, losses, strict=True):
            loss, _ = player(batch, seeded(step))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            history.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("method", METHODS)
def test_thirty_steps_lower_the_loss(method: str) -> None:
    settings, batch = tiny(method), set_of(method)
    network = build_network(settings, seed=0)
    players = players_of(settings, network, seed=0)

    def loss_on_fixed_draws() -> float:
        with torch.no_grad():
            draws = [players[0](batch, seeded(100 + n))[0] for n in range(8)]
        return float(torch.stack(draws).mean())

    before = loss_on_fixed_draws()
    train(players, batch, num_steps=30)
    assert loss_on_fixed_draws() < 0.9 * before
    if method in ("prodm", "cgan", "unet"):  # those that start from "no correction" soon beat it
        corrected = build_predict(settings, network)(batch.moving, seeded(0))
        uncorrected = (batch.moving - batch.still).square().mean()
        assert (corrected - batch.still).square().mean() < 0.8 * uncorrected


def test_the_discriminator_learns_to_tell_a_correction_from_the_truth() -> None:
    network = build_network(tiny("cgan"), seed=0)
    before = [parameter.clone() for parameter in network.parameters()]
    _, discriminator = build_players(tiny("cgan"), network, seed=0)
    batch = tiny_set()
    (losses,) = train((discriminator,), batch, num_steps=15)
    assert losses[-1] < 0.7 * losses[0]
    on_truth, on_moving = (
        discriminator.network(torch.cat([batch.moving, image], dim=1))[-1].mean()
        for image in (batch.still, batch.moving)
    )
    assert on_truth > 0 > on_moving
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_training_and_prediction_repeat_with_their_seed(method: str) -> None:
    settings, batch = tiny(method), set_of(method)
    global_state = torch.random.get_rng_state()
    results = []
    for _ in range(2):
        network = build_network(settings, seed=3)
        losses = train(players_of(settings, network, seed=4), batch, num_steps=2)
        prediction = build_predict(settings, network)(shown_to(method, batch), seeded(5))
        assert len(prediction) == len(batch.moving)
        num_images = (2 if method == "separator" else 1) * batch.moving.shape[1]
        shapes = {"reader": (2, NUM_ANGLES), "placer": (33, 33)}
        shape = shapes.get(method, (num_images, *batch.moving.shape[2:]))
        assert prediction.shape[1:] == shape
        assert not prediction.requires_grad
        results.append((losses, prediction))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert torch.equal(torch.random.get_rng_state(), global_state)


@pytest.mark.parametrize("method", METHODS)
def test_the_corrector_comes_first_and_holds_only_its_own_weights(method: str) -> None:
    network = build_network(tiny(method), seed=0)
    first, *others = players_of(tiny(method), network, seed=0)
    assert first.network is network
    assert num_parameters(first) == num_parameters(network)
    assert [other.name for other in others] == (["discriminator"] if method == "cgan" else [])


def test_a_reader_without_a_separator_is_refused() -> None:
    with pytest.raises(ProdmError, match="through a separator"):
        build_players(tiny("reader"), build_network(tiny("reader"), seed=0), seed=0)


@pytest.mark.parametrize("method", ["prodm", "prodm-paper", "bbdm", "ddpm"])
@pytest.mark.parametrize("num_jumps", [1, 3, 7])
def test_the_number_of_network_calls_is_the_number_of_jumps(method: str, num_jumps: int) -> None:
    calls: list[int] = []

    def network(xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
        calls.append(int(t[0]))
        return torch.zeros_like(y)

    predict = build_predict(tiny(method), network)
    predict(torch.rand(1, 3, 8, 8), seeded(0), num_jumps)
    assert len(calls) == num_jumps
    assert calls == sorted(calls, reverse=True)


@pytest.mark.parametrize(
    "method",
    [
        name
        for name in METHODS
        if name not in ("separator", "reader", "focuser", "placer", "polisher")
    ],
)
def test_the_hook_has_the_last_word(method: str) -> None:
    network = build_network(tiny(method), seed=0)
    predict = build_predict(tiny(method), network, between=lambda x: torch.full_like(x, 0.3))
    corrected = predict(torch.rand(1, 3, 8, 8), seeded(0))
    torch.testing.assert_close(corrected, torch.full_like(corrected, 0.3))


def test_an_untrained_bridge_and_regression_leave_the_image_alone() -> None:
    y = tiny_set().moving
    for method in ("prodm", "unet", "cgan"):
        settings = dataclasses.replace(
            tiny(method), sampling=SamplingSettings(num_jumps=3, fresh_noise=False)
        )
        network = build_network(settings, seed=0)
        torch.testing.assert_close(build_predict(settings, network)(y, seeded(0)), y)


@pytest.mark.parametrize("predicts", ["residual", "noise"])
def test_both_readings_of_the_output_have_the_error_of_x0_as_loss(predicts: Predicts) -> None:
    settings = dataclasses.replace(
        tiny("prodm"), predicts=predicts, loss=LossSettings(calcium="none")
    )
    batch = tiny_set()

    class Oracle(nn.Module):
        def forward(self, xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
            wrong_by = 0.1
            return (y if predicts == "residual" else xt) - batch.still + wrong_by

    (player,) = METHODS["prodm"].players(settings, Oracle())  # type: ignore[arg-type]
    loss, _ = player(batch, seeded(0))
    assert float(loss) == pytest.approx(0.01, rel=1e-4)


def test_what_a_publication_fixes_is_fixed() -> None:
    paper, bbdm = as_published(tiny("prodm-paper")), as_published(tiny("bbdm"))
    assert paper.bridge == BrownianBridge(1000, 2.0)
    assert paper.loss == LossSettings("volume", 20.0, 60.0)
    assert bbdm.bridge.noise_scale == 0.5  # 2 on images in [-1, 1]: half the deviation on [0, 1]
    assert bbdm.loss.calcium == "none"
    assert as_published(tiny("prodm")) == tiny("prodm")


@pytest.mark.parametrize("num_calls", [1, 4, 10])
def test_ddim_shows_the_network_states_as_noisy_as_their_step_says(num_calls: int) -> None:
    """A perfect oracle; the states must have the mean and noise of the forward process."""
    from monai.networks.schedulers import DDPMScheduler

    signal = DDPMScheduler(num_train_timesteps=1000).alphas_cumprod
    still = torch.full((4, 3, 32, 32), 0.7)

    def oracle(xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
        share = signal[int(t[0])]
        # At T - 1 MONAI's schedule leaves 0.6 % of the signal, while the walk starts without.
        assert float(xt.mean()) == pytest.approx(float(share.sqrt()) * 0.4, abs=0.04)
        assert float(xt.std()) == pytest.approx(float((1 - share).sqrt()), rel=0.05, abs=0.01)
        eps: Tensor = (xt - share.sqrt() * (2 * still - 1)) / (1 - share).sqrt()
        return eps

    settings = dataclasses.replace(
        tiny("ddpm"), predicts="noise", bridge=BrownianBridge(num_steps=1000)
    )
    end = build_predict(settings, oracle)(torch.zeros_like(still), seeded(0), num_calls)
    torch.testing.assert_close(end, still, atol=1e-3, rtol=0)


def test_ddpm_is_trained_on_the_states_that_it_will_be_shown() -> None:
    """The oracle of the walk, which knows how states are made, has no loss in training."""
    from monai.networks.schedulers import DDPMScheduler

    signal, batch = DDPMScheduler(num_train_timesteps=1000).alphas_cumprod, tiny_set()

    class Oracle(nn.Module):
        def forward(self, xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
            share = signal[t].reshape(-1, 1, 1, 1)
            eps: Tensor = (xt - share.sqrt() * (2 * batch.still - 1)) / (1 - share).sqrt()
            return eps

    settings = dataclasses.replace(tiny("ddpm"), predicts="noise")
    (player,) = METHODS["ddpm"].players(settings, Oracle())  # type: ignore[arg-type]
    loss, _ = player(batch, seeded(0))
    assert float(loss) < 1e-6


def test_ddpm_may_estimate_the_image_instead_of_the_noise() -> None:
    batch = tiny_set()

    class Oracle(nn.Module):
        def forward(self, xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
            return y - batch.still

    (player,) = METHODS["ddpm"].players(tiny("ddpm"), Oracle())  # type: ignore[arg-type]
    assert float(player(batch, seeded(0))[0]) < 1e-12
    end = build_predict(tiny("ddpm"), Oracle())(batch.moving, seeded(0), 4)
    torch.testing.assert_close(end, batch.still)


def test_ddpm_takes_every_step_when_all_are_asked_for() -> None:
    settings = dataclasses.replace(tiny("ddpm"), bridge=BrownianBridge(num_steps=20))
    steps: list[int] = []

    def network(xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
        steps.append(int(t[0]))
        return torch.zeros_like(y)

    build_predict(settings, network)(torch.rand(1, 3, 8, 8), seeded(0), 20)
    assert steps == list(range(19, -1, -1))
    with pytest.raises(ProdmError, match="number of steps must be 1 to 20, got 21"):
        build_predict(settings, network)(torch.rand(1, 3, 8, 8), seeded(0), 21)


@pytest.mark.parametrize("name", ["paper", "compact"])
def test_the_settings_in_the_package_are_complete_and_known(name: str) -> None:
    path = Path(str(resources.files("prodm"))) / "settings" / f"{name}.toml"
    settings = fill(ModelSettings, read_toml(path)["model"], "model")
    assert settings.method == "prodm"
    if name == "paper":
        assert settings.network == NetworkSettings()
        assert settings.bridge == BrownianBridge(1000, 2.0)
        assert settings.loss == LossSettings("volume", 20.0, 60.0)
        assert settings.sampling.descent(settings.bridge) == tuple(range(1000, -1, -100))


def test_unknown_settings_are_refused_with_the_nearest_key() -> None:
    with pytest.raises(ProdmError, match=r"model.bridge has no key 'noise'.*noise_scale"):
        fill(ModelSettings, {"bridge": {"noise": 2.0}}, "model")
    with pytest.raises(ProdmError, match="method must be one of prodm, prodm-paper"):
        fill(ModelSettings, {"method": "gan"}, "model")
    with pytest.raises(ProdmError, match="predicts"):
        fill(ModelSettings, {"predicts": "image"}, "model")
