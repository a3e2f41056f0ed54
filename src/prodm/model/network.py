"""The network that predicts what to take away from an image. It knows no diffusion.

A correction network is called as ``network(xt, y, t)`` and returns F, of the shape of y:

    xt  [B, k, Y, X]  the state; anything of y's shape that the method defines
    y   [B, k, Y, X]  the moving window of k slices, in [0, 1]
    t   [B]           the step

What F means is the method's affair. The bridge reads it in one of two ways:

    residual    x0^ = y - F        a zero output means "no correction"
    noise       x0^ = xt - F       the paper's: F estimates n_t = xt - x0

Both have the same objective, since n_t - n_t^ = x0^ - x0. The last convolution starts at
zero, so an untrained network returns exactly 0.

The body is MONAI's DiffusionModelUNet. ``fold`` packs f x f pixels into channels before the
first convolution and unpacks them after the last one: a quarter of the positions at f = 2,
for the same field of view, which is what a CPU can train. ``num_wedges`` adds, for each
slice of y, its partial-angle images: the Fourier plane cut into that many angular wedges, each
seen by the scanner at one moment. They are a function of y, so callers need not know of them.
A separator's network returns three maps per slice instead, [B, 3 k, Y, X]
(``prodm.model.separation``).

A ``gated`` network does not paint what is to be taken away, it says where to take it: the body
returns a gate G, a background B and the calcium at rest E, and what moves is G (y - B). Gate and
background are smooth, so that the grain of the image need not pass through the network.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from prodm.errors import ProdmError

Predicts = Literal["residual", "noise"]
TISSUE = 0.2  # 0 HU, from where the background of a gated network is counted
Denoise = Callable[[Tensor, Tensor, Tensor], Tensor]  # (xt, y, t) -> x0^


class Network(Protocol):
    """Anything that is called like a correction network."""

    def __call__(self, xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
        """Return F, of the shape of y."""
        ...


@dataclass(frozen=True)
class NetworkSettings:
    """Size of the network; the defaults are the paper's."""

    num_slices: int = 3
    channels: tuple[int, ...] = (128, 256, 256, 256)  # per level, each half as fine as the last
    attention: tuple[bool, ...] = (False, False, True, True)  # per level; the middle always has it
    num_res_blocks: int = 2
    num_head_channels: int = 64
    norm_groups: int = 32
    fold: int = 1
    num_wedges: int = 0
    gated: bool = False

    def __post_init__(self) -> None:
        if self.num_slices < 1 or self.num_slices % 2 == 0:
            raise ProdmError(f"num_slices must be odd, got {self.num_slices}")
        if len(self.attention) != len(self.channels) or not self.channels:
            raise ProdmError(
                f"attention needs one value per level, got {len(self.attention)} values "
                f"for {len(self.channels)} levels of channels"
            )
        if any(width < 1 or width % self.norm_groups for width in self.channels):
            raise ProdmError(
                f"channels must be multiples of norm_groups = {self.norm_groups}, "
                f"got {list(self.channels)}"
            )
        with_attention = [
            *zip(self.channels, self.attention, strict=True),
            (self.channels[-1], True),
        ]
        if any(has and width % self.num_head_channels for width, has in with_attention):
            raise ProdmError(
                f"num_head_channels = {self.num_head_channels} must divide the channels of the "
                f"last level and of every level with attention, got {list(self.channels)}"
            )
        if self.num_res_blocks < 1 or self.fold < 1:
            raise ProdmError(
                "num_res_blocks and fold must be at least 1, "
                f"got {self.num_res_blocks} and {self.fold}"
            )
        if self.num_wedges < 0 or self.num_wedges == 1:
            raise ProdmError(f"num_wedges must be 0 (none) or at least 2, got {self.num_wedges}")

    @property
    def num_condition_channels(self) -> int:
        """Number of input channels besides the state and y."""
        return self.num_slices * self.num_wedges

    @property
    def divisor(self) -> int:
        """What the height and width of an image must be divisible by."""
        return int(self.fold * 2 ** (len(self.channels) - 1))


def folded_unet(settings: NetworkSettings, *, num_in: int, num_out: int) -> nn.Module:
    """Return MONAI's network from and to so many images, whose pixels are folded."""
    from monai.networks.nets import DiffusionModelUNet  # late: the import takes seconds

    body: nn.Module = DiffusionModelUNet(
        spatial_dims=2,
        in_channels=num_in * settings.fold**2,
        out_channels=num_out * settings.fold**2,
        channels=settings.channels,
        attention_levels=settings.attention,
        num_res_blocks=settings.num_res_blocks,
        num_head_channels=settings.num_head_channels,
        norm_num_groups=settings.norm_groups,
    )
    return body


class CorrectionNetwork(nn.Module):
    """MONAI's network between folding and unfolding. Any size divisible by ``divisor``."""

    def __init__(
        self, settings: NetworkSettings, *, takes_state: bool = True, separates: bool = False
    ) -> None:
        """Build the network; without a state, ``xt`` and ``t`` are ignored when it is called."""
        super().__init__()
        self.settings = settings
        self.takes_state = takes_state
        self.separates = separates
        num_maps = 3 if settings.gated or separates else 1
        num_images = settings.num_slices * (2 if takes_state else 1)
        self.body = folded_unet(
            settings,
            num_in=num_images + settings.num_condition_channels,
            num_out=num_maps * settings.num_slices,
        )

    def forward(self, xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
        """Return F [B, k, Y, X], or the three maps [B, 3 k, Y, X] of a separator."""
        _, num_slices, height, width = y.shape
        divisor = self.settings.divisor
        if num_slices != self.settings.num_slices or height % divisor or width % divisor:
            raise ProdmError(
                f"this network takes windows of {self.settings.num_slices} slices whose height "
                f"and width are multiples of {divisor}, got {num_slices} slices of "
                f"{height} x {width}"
            )
        images = [xt, y] if self.takes_state else [y]
        if self.settings.num_wedges:
            images.append(partial_angles(y, self.settings.num_wedges))
        if not self.takes_state:
            t = torch.zeros(y.shape[0], device=y.device)
        folded = functional.pixel_unshuffle(torch.cat(images, dim=1), self.settings.fold)
        maps = functional.pixel_shuffle(self.body(folded, t), self.settings.fold)
        if self.separates or not self.settings.gated:
            return maps
        gate, background, still = maps.chunk(3, dim=1)
        return gate * (y - TISSUE - background) - still


def partial_angles(y: Tensor, num_wedges: int) -> Tensor:
    """Return the partial-angle images of each slice of y as channels [B, k * K, Y, X].

    Each slice is mirrored by half its size on every side first. That makes it periodic, so
    that the border of the window, an edge in four directions, does not drown the lesions.
    """
    from prodm.physics.wedges import partial_angle_images

    slices, which = slices_once(y)
    top, left = y.shape[-2] // 2, y.shape[-1] // 2
    mirrored = functional.pad(slices[None], (left, left, top, top), mode="reflect")[0]
    wedges: Tensor = partial_angle_images(mirrored, num_wedges, padding=0)
    wedges = wedges[..., top : top + y.shape[-2], left : left + y.shape[-1]]
    return wedges[which].flatten(1, 2)


def slices_once(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the slices of windows [B, k, Y, X] as [N, Y, X], and which ones each has [B, k].

    Windows around neighbouring slices share all but one, which is here once.
    """
    goes_on = (y[1:, :-1] == y[:-1, 1:]).flatten(1).all(dim=1)
    is_new = torch.ones(y.shape[:2], dtype=torch.bool, device=y.device)
    is_new[1:, :-1] = ~goes_on[:, None]
    which = is_new.flatten().cumsum(dim=0).reshape(is_new.shape) - 1
    for window in (torch.nonzero(goes_on).flatten() + 1).tolist():
        which[window, :-1] = which[window - 1, 1:]
    return y[is_new], which


def denoiser(network: Network, predicts: Predicts) -> Denoise:
    """Return the function (xt, y, t) -> x0^ that a network stands for."""
    if predicts == "residual":
        return lambda xt, y, t: y - network(xt, y, t)
    return lambda xt, y, t: xt - network(xt, y, t)


def num_parameters(network: nn.Module) -> int:
    """Number of trained values."""
    return sum(parameter.numel() for parameter in network.parameters())
