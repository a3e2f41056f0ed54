"""The methods that are compared: one function to train each, and one to use it.

All share the network's size, the data and the budget; only the method differs. Those that walk
estimate x0 as ``predicts`` says: ``residual``, y - F, or ``noise``, the published form, in which F
is the noise. For the bridge both have the same objective. A network that folds pixels has fewer
channels than a window has noise values at each place, and cannot pass the noise through.

    prodm         the bridge with the settings as given
    prodm-paper   as printed: m = 2, volume loss with tau = 60 HU, lambda = 20
    bbdm          the bridge as published (Li et al., CVPR 2023), without a calcium loss. Its noise,
                  d = 2 a (1 - a), is for images in [-1, 1]; on [0, 1] that is m = 0.5.
                  Published walks take 200 equal jumps with fresh noise.
    ddpm          conditional diffusion from noise (Ho et al., 2020): T = 1000, linear betas; DDIM
                  (Song et al., 2021) where fewer steps are asked for
    cgan          pix2pix (Isola et al., CVPR 2017): a patch discriminator sees (y, image);
                  adversarial + 100 x mean absolute error
    unet          plain regression: mean squared error of y - F(y)
    separator     tells what moves, with all its streaks, and where it rests
                  (``prodm.model.separation``)
    reader        tells how it moves (``prodm.model.reading``)
    placer        tells where it rests, once its motion was found (``prodm.model.resting``)
    focuser       tells what it is at rest, likewise (``prodm.model.focusing``)
    polisher      tells what is wrong with what a focuser saw (``prodm.model.polishing``).
                  These five correct nothing by themselves; ``prodm.model.phasing`` does.

Training is a game with one or more players, each a module with its own optimiser; every
player's ``forward`` is its loss, so that an engine for many processes can wrap it:

    for player, optimiser in zip(players, optimisers):
        loss, parts = player(batch, generator)
        optimiser.zero_grad(); loss.backward(); optimiser.step()

The first player always trains the network that corrects, the only one that is kept. Gradients
must be zeroed right before each ``backward``, as the loss of one may touch another.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from prodm.errors import ProdmError
from prodm.model.bridge import BrownianBridge
from prodm.model.focusing import Focuser, focusing_loss
from prodm.model.losses import Batch, LossSettings, Parts, total_loss
from prodm.model.network import CorrectionNetwork, Network, NetworkSettings, Predicts, denoiser
from prodm.model.polishing import Polisher, polishing_loss
from prodm.model.reading import MotionReader, reading_loss
from prodm.model.resting import Placer, placing_loss
from prodm.model.sampler import Between, SamplingSettings, no_change, normal_like, walk
from prodm.model.separation import background_and_still, separation_loss

AnyNetwork = CorrectionNetwork | MotionReader | Focuser | Placer | Polisher


@dataclass(frozen=True)
class GanSettings:
    """The second player of ``cgan``; the defaults are those of pix2pix."""

    l1_weight: float = 100.0
    discriminator_channels: int = 64
    discriminator_layers: int = 3


@dataclass(frozen=True)
class ModelSettings:
    """Everything that decides what is trained, except the data and the budget."""

    method: str = "prodm"
    predicts: Predicts = "residual"
    network: NetworkSettings = field(default_factory=NetworkSettings)
    bridge: BrownianBridge = field(default_factory=BrownianBridge)
    loss: LossSettings = field(default_factory=LossSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    gan: GanSettings = field(default_factory=GanSettings)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ProdmError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.predicts not in ("residual", "noise"):
            raise ProdmError(f"predicts must be residual or noise, got {self.predicts!r}")


Loss = Callable[[nn.Module, Batch, torch.Generator], tuple[Tensor, Parts]]
Look = Callable[[Tensor], Tensor]


class Predict(Protocol):
    """A trained method in use."""

    def __call__(
        self, y: Tensor, generator: torch.Generator, num_jumps: int | None = None
    ) -> Tensor:
        """Return x0^ of moving windows [B, k, Y, X]; one-step methods ignore ``num_jumps``.

        A separator returns [B, 2 k, Y, X]: the background, then the odds of calcium at rest. A
        reader is given what a separator sees, and returns paths (``prodm.model.reading``). A
        focuser is given views, and returns calcium in HU (``prodm.model.focusing``), a placer the
        evidence of places (``prodm.model.resting``), and a polisher is given other views, and
        returns calcium in HU (``prodm.model.polishing``).
        """
        ...


class Player(nn.Module):
    """A network and the loss that trains it."""

    def __init__(self, name: str, network: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.name = name
        self.network = network
        self.loss = loss

    def forward(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Parts]:
        """Return the loss of a batch and its parts."""
        return self.loss(self.network, batch, generator)


def build_network(settings: ModelSettings, seed: int) -> AnyNetwork:
    """Return the untrained network of a method; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return METHODS[settings.method].network(settings.network)


def build_players(
    settings: ModelSettings, network: AnyNetwork, seed: int, look: Look | None = None
) -> tuple[Player, ...]:
    """Return the players that train ``network``, the first, by the method of the settings.

    ``look`` tells what a separator sees in windows; a reader learns from that.
    """
    players: Callable[..., tuple[Player, ...]] = METHODS[settings.method].players
    if look is not None:
        players = partial(players, look=look)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return players(as_published(settings), network)


def build_predict(
    settings: ModelSettings, network: Network, between: Between = no_change
) -> Predict:
    """Return the function that corrects windows with a trained network.

    ``between`` changes every estimate of x0 on the way, after each network call.
    """
    predict = METHODS[settings.method].predict
    published = as_published(settings)

    @torch.no_grad()
    def corrected(y: Tensor, generator: torch.Generator, num_jumps: int | None = None) -> Tensor:
        return predict(published, network, Request(y, generator, num_jumps, between))

    return corrected


def as_published(settings: ModelSettings) -> ModelSettings:
    """Return the settings with what a method's own publication fixes."""
    if settings.method == "prodm-paper":
        return replace(
            settings,
            bridge=BrownianBridge(num_steps=1000, noise_scale=2.0),
            loss=LossSettings(calcium="volume", weight=20.0, tau_hu=60.0),
        )
    if settings.method == "bbdm":
        return replace(
            settings,
            bridge=BrownianBridge(num_steps=1000, noise_scale=0.5),
            loss=LossSettings(calcium="none"),
        )
    return settings


@dataclass(frozen=True, eq=False)
class Request:
    """What is to be corrected, and how."""

    y: Tensor
    generator: torch.Generator
    num_jumps: int | None
    between: Between


def bridge_players(settings: ModelSettings, network: AnyNetwork) -> tuple[Player, ...]:
    """Algorithm 2 of the paper: a random step of the bridge, and the error of x0^ there."""
    bridge = settings.bridge

    def loss(network: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Parts]:
        t = _random_steps(batch.still, 1, bridge.num_steps, generator)
        eps = normal_like(batch.still, generator)
        xt = bridge.diffuse(batch.still, batch.moving, t, eps)
        estimate = denoiser(network, settings.predicts)(xt, batch.moving, t)
        return total_loss(estimate, batch, settings.loss)

    return (Player("network", network, loss),)


def bridge_predict(settings: ModelSettings, network: Network, request: Request) -> Tensor:
    """Walk the bridge back from y."""
    return walk(
        settings.bridge,
        denoiser(network, settings.predicts),
        request.y,
        settings.sampling.descent(settings.bridge, request.num_jumps),
        generator=request.generator if settings.sampling.fresh_noise else None,
        between=request.between,
    )


def regression_players(settings: ModelSettings, network: AnyNetwork) -> tuple[Player, ...]:
    """Plain regression of x0 from y."""

    def loss(network: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Parts]:
        image = functional.mse_loss(_regress(network, batch.moving), batch.still)
        return image, {"image": image.detach()}

    return (Player("network", network, loss),)


def separator_players(settings: ModelSettings, network: AnyNetwork) -> tuple[Player, ...]:
    """Where calcium passes, what lies behind it, and where it rests."""

    def loss(network: Network, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Parts]:
        return separation_loss(_call_once(network, batch.moving), batch)

    return (Player("network", network, loss),)


def separator_predict(settings: ModelSettings, network: Network, request: Request) -> Tensor:
    """Return the background and then the odds of calcium at rest, [B, 2 k, Y, X]."""
    return background_and_still(_call_once(network, request.y), request.y)


def regression_predict(settings: ModelSettings, network: Network, request: Request) -> Tensor:
    """Take away from y what the network says, once."""
    return request.between(_regress(network, request.y))


def gan_players(settings: ModelSettings, network: AnyNetwork) -> tuple[Player, ...]:
    """A corrector that must also deceive a discriminator of patches."""
    from monai.networks.nets import PatchDiscriminator  # late: the import takes seconds

    gan = settings.gan
    judge = PatchDiscriminator(
        spatial_dims=2,
        channels=gan.discriminator_channels,
        in_channels=2 * settings.network.num_slices,
        num_layers_d=gan.discriminator_layers,
        norm="INSTANCE",
    )

    def corrector_loss(
        network: nn.Module, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Parts]:
        estimate = _regress(network, batch.moving)
        absolute = functional.l1_loss(estimate, batch.still)
        adversarial = _verdict_loss(judge, batch.moving, estimate, real=True)
        total = gan.l1_weight * absolute + adversarial
        return total, {"absolute": absolute.detach(), "adversarial": adversarial.detach()}

    def judge_loss(
        judge: nn.Module, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Parts]:
        with torch.no_grad():
            estimate = _regress(network, batch.moving)
        on_real = _verdict_loss(judge, batch.moving, batch.still, real=True)
        on_made = _verdict_loss(judge, batch.moving, estimate, real=False)
        total = (on_real + on_made) / 2
        return total, {"discriminator": total.detach()}

    return Player("network", network, corrector_loss), Player("discriminator", judge, judge_loss)


def ddpm_players(settings: ModelSettings, network: AnyNetwork) -> tuple[Player, ...]:
    """Predict the still image under noise, or the noise, given the moving one."""
    from monai.networks.schedulers import DDPMScheduler

    num_steps = settings.bridge.num_steps
    scheduler = DDPMScheduler(num_train_timesteps=num_steps, schedule="linear_beta")

    def loss(network: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Parts]:
        t = _random_steps(batch.still, 0, num_steps - 1, generator)
        eps = normal_like(batch.still, generator)
        xt = scheduler.add_noise(2 * batch.still - 1, eps, t)
        answer = network(xt, batch.moving, t)
        if settings.predicts == "noise":
            noise = functional.mse_loss(answer, eps)
            return noise, {"noise": noise.detach()}
        image = functional.mse_loss(batch.moving - answer, batch.still)
        return image, {"image": image.detach()}

    return (Player("network", network, loss),)


def ddpm_predict(settings: ModelSettings, network: Network, request: Request) -> Tensor:
    """Denoise from pure noise: every step by DDPM, or fewer by DDIM without fresh noise.

    MONAI's DDIM steps back by T // steps, while its own list of steps is spaced differently;
    the list here is the one that its steps really follow.
    """
    from monai.networks.schedulers import DDIMScheduler, DDPMScheduler

    num_steps = settings.bridge.num_steps
    num_calls = settings.sampling.num_jumps if request.num_jumps is None else request.num_jumps
    if not 1 <= num_calls <= num_steps:
        raise ProdmError(f"the number of steps must be 1 to {num_steps}, got {num_calls}")
    kind = DDPMScheduler if num_calls == num_steps else DDIMScheduler
    scheduler = kind(
        num_train_timesteps=num_steps, schedule="linear_beta", prediction_type="sample"
    )
    scheduler.set_timesteps(num_calls)

    xt = normal_like(request.y, request.generator)
    estimate = request.y
    for call in range(num_calls):
        t = num_steps - 1 - call * (num_steps // num_calls)
        signal = scheduler.alphas_cumprod[t].item()
        answer = network(xt, request.y, torch.full((len(xt),), t, device=xt.device))
        if settings.predicts == "noise":
            estimate = ((xt - (1 - signal) ** 0.5 * answer) / signal**0.5 + 1) / 2
        else:
            estimate = request.y - answer
        estimate = request.between(estimate.clamp(0, 1))
        xt, _ = scheduler.step(2 * estimate - 1, t, xt, generator=request.generator)
    return estimate


def reader_players(
    settings: ModelSettings, network: AnyNetwork, look: Look | None = None
) -> tuple[Player, ...]:
    """How calcium moved, given what a separator sees."""
    if look is None:
        raise ProdmError("a reader learns to look through a separator, and none was given")

    def loss(network: Network, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Parts]:
        return reading_loss(_call_once(network, look(batch.moving)), batch)

    return (Player("network", network, loss),)


def focuser_players(settings: ModelSettings, network: AnyNetwork) -> tuple[Player, ...]:
    """What calcium is at rest, given the motion that was found."""

    def loss(network: Network, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Parts]:
        if batch.views is None:
            raise ProdmError("a focuser learns from motions that were found")
        return focusing_loss(_call_once(network, batch.views), batch, settings.loss)

    return (Player("network", network, loss),)


def placer_players(settings: ModelSettings, network: AnyNetwork) -> tuple[Player, ...]:
    """Where calcium rests, given the motion that was found."""

    def loss(network: Placer, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Parts]:
        if batch.views is None:
            raise ProdmError("a placer learns from motions that were found")
        return placing_loss(*network.evidence_and_odds(batch.views), batch)

    return (Player("network", network, loss),)  # type: ignore[arg-type]


def polisher_players(settings: ModelSettings, network: AnyNetwork) -> tuple[Player, ...]:
    """What calcium is at rest, given what a focuser saw."""

    def loss(network: Network, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Parts]:
        if batch.views is None:
            raise ProdmError("a polisher learns from what a focuser saw")
        return polishing_loss(_call_once(network, batch.views), batch, settings.loss)

    return (Player("network", network, loss),)


def direct_predict(settings: ModelSettings, network: Network, request: Request) -> Tensor:
    """Return what a network answers to what it is shown, ``request.y``."""
    return _call_once(network, request.y)


@dataclass(frozen=True)
class Method:
    """How a method is trained and used."""

    network: Callable[[NetworkSettings], AnyNetwork]
    players: Callable[[ModelSettings, AnyNetwork], tuple[Player, ...]]
    predict: Callable[[ModelSettings, Network, Request], Tensor]
    walks: bool = False  # from y, or from noise, in several calls of the network


_ONE_CALL = partial(CorrectionNetwork, takes_state=False)
METHODS: dict[str, Method] = {
    "prodm": Method(CorrectionNetwork, bridge_players, bridge_predict, walks=True),
    "prodm-paper": Method(CorrectionNetwork, bridge_players, bridge_predict, walks=True),
    "bbdm": Method(CorrectionNetwork, bridge_players, bridge_predict, walks=True),
    "ddpm": Method(CorrectionNetwork, ddpm_players, ddpm_predict, walks=True),
    "cgan": Method(_ONE_CALL, gan_players, regression_predict),
    "unet": Method(_ONE_CALL, regression_players, regression_predict),
    "separator": Method(partial(_ONE_CALL, separates=True), separator_players, separator_predict),
    "reader": Method(MotionReader, reader_players, direct_predict),
    "placer": Method(Placer, placer_players, direct_predict),
    "focuser": Method(Focuser, focuser_players, direct_predict),
    "polisher": Method(Polisher, polisher_players, direct_predict),
}


def _random_steps(image: Tensor, first: int, last: int, generator: torch.Generator) -> Tensor:
    """One step per image, each of first to last equally likely."""
    steps = torch.randint(
        first, last + 1, (len(image),), generator=generator, device=generator.device
    )
    return steps.to(image.device)


def _call_once(network: Network, y: Tensor) -> Tensor:
    return network(y, y, torch.zeros(len(y), device=y.device))


def _regress(network: Network, y: Tensor) -> Tensor:
    return y - _call_once(network, y)


def _verdict_loss(judge: nn.Module, y: Tensor, image: Tensor, *, real: bool) -> Tensor:
    verdict: Tensor = judge(torch.cat([y, image], dim=1))[-1]
    wanted = torch.full_like(verdict, float(real))
    return functional.binary_cross_entropy_with_logits(verdict, wanted)
