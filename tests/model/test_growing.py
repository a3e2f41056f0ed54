"""A deeper network starts as the one that it came from."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from prodm.errors import ProdmError
from prodm.model.baselines import ModelSettings, build_network
from prodm.model.checkpoint import save_checkpoint
from prodm.model.growing import deepened, starting_weights
from prodm.model.network import NetworkSettings

SMALL = NetworkSettings(
    num_slices=1,
    channels=(8, 16, 16),
    attention=(False, False, False),
    num_res_blocks=1,
    num_head_channels=8,
    norm_groups=4,
    fold=2,
)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    settings = ModelSettings(method="separator", network=SMALL)
    network = build_network(settings, seed=1)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():  # many start at zero, and would hide a mistake
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    path = tmp_path / "small.safetensors"
    save_checkpoint(path, network.state_dict(), settings, {})
    return path


@pytest.mark.parametrize("num_res_blocks", [1, 2, 3])
def test_a_deeper_network_says_the_same(weights: Path, num_res_blocks: int) -> None:
    small = ModelSettings(method="separator", network=SMALL)
    deep = replace(small, network=replace(SMALL, num_res_blocks=num_res_blocks))
    before, after = build_network(small, seed=0), build_network(deep, seed=5)
    before.load_state_dict(starting_weights(weights, small.network, before))
    after.load_state_dict(starting_weights(weights, deep.network, after))
    image = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(2))
    step = torch.zeros(2)
    expected = before(image, image, step).detach()
    assert float(expected.std()) > 0.01
    torch.testing.assert_close(after(image, image, step), expected, rtol=1e-4, atol=1e-5)


def test_new_blocks_learn(weights: Path) -> None:
    settings = ModelSettings(method="separator", network=replace(SMALL, num_res_blocks=2))
    network = build_network(settings, seed=5)
    network.load_state_dict(starting_weights(weights, settings.network, network))
    image = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(2))
    network(image, image, torch.zeros(2)).square().sum().backward()
    learns = {
        name: parameter.grad is not None and bool(parameter.grad.any())
        for name, parameter in network.named_parameters()
    }
    for way in ("down", "up"):
        assert learns[f"body.{way}_blocks.0.resnets.1.conv2.conv.weight"]


def test_other_sizes_are_refused(weights: Path) -> None:
    deeper = replace(SMALL, num_res_blocks=2)
    network = build_network(ModelSettings(method="separator", network=deeper), seed=0)
    with pytest.raises(ProdmError, match="of another size"):
        starting_weights(weights, replace(deeper, fold=1), network)
    with pytest.raises(ProdmError, match="of another size"):
        starting_weights(weights, replace(SMALL, attention=(False, False, True)), network)


def test_fewer_blocks_are_refused(weights: Path) -> None:
    settings = ModelSettings(method="separator", network=replace(SMALL, num_res_blocks=2))
    network = build_network(settings, seed=0)
    save_checkpoint(weights, network.state_dict(), settings, {})
    with pytest.raises(ProdmError, match="of another size"):
        starting_weights(weights, SMALL, network)


def test_attention_cannot_be_made_deeper() -> None:
    attentive = replace(SMALL, attention=(False, False, True))
    with pytest.raises(ProdmError, match="with attention on its levels cannot be made deeper"):
        deepened({}, {}, attentive, replace(attentive, num_res_blocks=2))
