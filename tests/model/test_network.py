"""The network has the paper's size and attention, starts at zero, and takes any fitting size."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from prodm.errors import ProdmError
from prodm.model.network import (
    CorrectionNetwork,
    NetworkSettings,
    denoiser,
    num_parameters,
    partial_angles,
    slices_once,
)
from prodm.model.sampler import slice_windows

TINY = NetworkSettings(
    channels=(8, 16), attention=(False, False), num_res_blocks=1, num_head_channels=8, norm_groups=4
)


def awake(settings: NetworkSettings, *, takes_state: bool = True) -> CorrectionNetwork:
    """A network without the convolutions that start at zero, so that its output says something."""
    torch.manual_seed(0)
    network = CorrectionNetwork(settings, takes_state=takes_state)
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    return network.eval()


def windows(num_slices: int = 3, size: tuple[int, int] = (16, 16), seed: int = 0) -> Tensor:
    return torch.rand(2, num_slices, *size, generator=torch.Generator().manual_seed(seed))


def test_the_papers_network_has_its_37_million_parameters() -> None:
    assert num_parameters(CorrectionNetwork(NetworkSettings())) == 37_068_163


def test_the_papers_attention_sits_at_16_and_8_pixels_with_64_channels_per_head() -> None:
    with torch.device("meta"):  # shapes only: nothing is computed
        network = CorrectionNetwork(NetworkSettings())
    seen: dict[int, set[str]] = {}

    def watch(name: str, module: nn.Module) -> None:
        def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen.setdefault(inputs[0].shape[-1], set()).add(name.split(".")[0])

        module.register_forward_hook(note)

    for name, module in network.body.named_modules():
        if type(module).__name__ == "SpatialAttentionBlock":
            assert module.attn.num_heads * 64 == module.attn.inner_dim == 256
            watch(name, module)
    image = torch.zeros(1, 3, 64, 64, device="meta")
    network(image, image, torch.zeros(1, device="meta"))
    assert seen == {
        16: {"down_blocks", "up_blocks"},
        8: {"down_blocks", "middle_block", "up_blocks"},
    }


@pytest.mark.parametrize("takes_state", [True, False])
def test_an_untrained_network_corrects_nothing(takes_state: bool) -> None:
    network = CorrectionNetwork(TINY, takes_state=takes_state)
    y = windows()
    estimate = denoiser(network, "residual")(windows(seed=1), y, torch.ones(2))
    assert torch.equal(estimate, y)


def test_what_the_output_means_is_a_setting() -> None:
    network = awake(TINY)
    xt, y, t = windows(seed=1), windows(), torch.tensor([1.0, 500.0])
    output = network(xt, y, t)
    assert output.abs().max() > 0.01
    assert torch.equal(denoiser(network, "residual")(xt, y, t), y - output)
    assert torch.equal(denoiser(network, "noise")(xt, y, t), xt - output)


def test_a_network_without_state_sees_neither_state_nor_step() -> None:
    blind, seeing = awake(TINY, takes_state=False), awake(TINY)
    y, t = windows(), torch.zeros(2)
    other, later = windows(seed=1), torch.full((2,), 700.0)
    assert torch.equal(blind(y, y, t), blind(other, y, later))
    assert not torch.equal(seeing(y, y, t), seeing(other, y, t))
    assert not torch.equal(seeing(y, y, t), seeing(y, y, later))


@pytest.mark.parametrize("num_slices", [3, 5, 7, 9])
@pytest.mark.parametrize("fold", [1, 2])
@pytest.mark.parametrize("size", [(16, 16), (24, 32)])
def test_any_window_and_fitting_size_comes_back_in_its_shape(
    num_slices: int, fold: int, size: tuple[int, int]
) -> None:
    network = awake(dataclasses.replace(TINY, num_slices=num_slices, fold=fold))
    y = windows(num_slices, size)
    with torch.no_grad():
        assert network(y, y, torch.zeros(2)).shape == y.shape


def test_folding_keeps_every_pixel_in_its_place() -> None:
    """A body that passes its first images through must give them back pixel for pixel."""
    network = CorrectionNetwork(dataclasses.replace(TINY, fold=2))

    class FirstImages(nn.Module):
        def forward(self, folded: Tensor, t: Tensor) -> Tensor:
            return folded[:, :12]

    network.body = FirstImages()
    xt = windows(seed=1)
    assert torch.equal(network(xt, windows(), torch.zeros(2)), xt)


def test_partial_angles_become_channels_that_sum_to_the_slices() -> None:
    y = windows()
    channels = partial_angles(y, num_wedges=4)
    assert channels.shape == (2, 12, 16, 16)
    torch.testing.assert_close(channels.reshape(2, 3, 4, 16, 16).sum(2), y, atol=1e-5, rtol=0)


def test_partial_angles_of_a_flat_window_show_no_border() -> None:
    channels = partial_angles(torch.full((1, 3, 16, 16), 0.3), num_wedges=4)
    torch.testing.assert_close(channels, torch.full_like(channels, 0.3 / 4))


def test_partial_angles_reach_the_network() -> None:
    settings = dataclasses.replace(TINY, num_wedges=4, fold=2)
    network = awake(settings)
    assert settings.num_condition_channels == 12
    assert network.body.in_channels == (3 + 3 + 12) * 4
    assert network(windows(), windows(), torch.zeros(2)).shape == (2, 3, 16, 16)


def test_windows_that_do_not_fit_are_refused() -> None:
    network = CorrectionNetwork(dataclasses.replace(TINY, fold=2))
    with pytest.raises(ProdmError, match=r"3 slices .* multiples of 4, got 3 slices of 16 x 18"):
        network(windows(size=(16, 18)), windows(size=(16, 18)), torch.zeros(2))
    with pytest.raises(ProdmError, match="got 5 slices"):
        network(windows(5), windows(5), torch.zeros(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_slices": 4}, "num_slices must be odd, got 4"),
        ({"attention": (True,)}, "one value per level"),
        ({"channels": (8, 18)}, "multiples of norm_groups = 4"),
        ({"num_head_channels": 5}, "num_head_channels = 5 must divide"),
        ({"fold": 0}, "fold must be at least 1"),
        ({"num_wedges": 1}, "num_wedges must be 0"),
    ],
)
def test_impossible_networks_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ProdmError, match=message):
        dataclasses.replace(TINY, **change)  # type: ignore[arg-type]


def test_importing_the_model_does_not_import_monai() -> None:
    code = "import prodm.model.checkpoint, sys; sys.exit('monai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("separates", [False, True])
def test_a_gated_network_starts_at_zero_and_returns_its_images(separates: bool) -> None:
    settings = dataclasses.replace(TINY, gated=True)
    network = CorrectionNetwork(settings, takes_state=False, separates=separates)
    y = torch.rand(2, TINY.num_slices, 16, 16)
    output = network(y, y, torch.zeros(2))
    assert output.shape == (2, (3 if separates else 1) * TINY.num_slices, 16, 16)
    assert not output.any()


def test_a_gate_takes_what_stands_above_the_background_and_puts_calcium_at_rest() -> None:
    settings = dataclasses.replace(TINY, gated=True)
    y = torch.rand(1, TINY.num_slices, 16, 16)
    maps = torch.rand(1, 3 * TINY.num_slices, 16, 16)

    class Says(nn.Module):
        def forward(self, folded: Tensor, t: Tensor) -> Tensor:
            return nn.functional.pixel_unshuffle(maps, settings.fold)

    gate, background, still = maps.chunk(3, dim=1)
    one = CorrectionNetwork(settings, takes_state=False)
    one.body = Says()
    moving = gate * (y - 0.2 - background)
    torch.testing.assert_close(one(y, y, torch.zeros(1)), moving - still)
    two = CorrectionNetwork(settings, takes_state=False, separates=True)
    two.body = Says()
    torch.testing.assert_close(two(y, y, torch.zeros(1)), maps)


def test_slices_that_windows_share_are_there_once() -> None:
    """Windows around slices 0 to 2 and 6 of seven; two that begin alike do not go on."""
    numbers = torch.tensor([[0, 0, 1], [0, 1, 2], [1, 2, 3], [5, 6, 6], [5, 6, 6]])
    windows = numbers[..., None, None].expand(5, 3, 4, 4).float()
    slices, which = slices_once(windows)
    assert slices[:, 0, 0].tolist() == [0, 0, 1, 2, 3, 5, 6, 6, 5, 6, 6]
    assert torch.equal(slices[which], windows)
    alone, which = slices_once(windows[:, :1])
    assert torch.equal(alone[which], windows[:, :1])


def test_partial_angles_do_not_depend_on_what_else_is_shown() -> None:
    stack = torch.rand(1, 6, 16, 16, generator=torch.Generator().manual_seed(0))
    windows = slice_windows(stack, 3)
    alone = torch.cat([partial_angles(window[None], num_wedges=4) for window in windows])
    torch.testing.assert_close(partial_angles(windows, num_wedges=4), alone)
