"""What ships must say what was trained."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from prodm.correction.loading import PARTS, shipped_weights
from prodm.model.baselines import ModelSettings, build_network
from prodm.model.checkpoint import load_network
from prodm.model.network import NetworkSettings

SMALL = NetworkSettings(
    num_slices=1,
    channels=(8, 16),
    attention=(False, False),
    num_res_blocks=1,
    num_head_channels=8,
    norm_groups=4,
    fold=2,
)


@pytest.fixture(scope="module")
def ship_weights(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("benchmarks/ship_weights.py")


def test_a_network_without_steps_says_the_same(ship_weights: ModuleType) -> None:
    network = build_network(ModelSettings(method="separator", network=SMALL), seed=1)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    image, step = torch.rand(2, 1, 32, 32, generator=generator), torch.zeros(2)
    before = network(image, image, step).detach()
    ship_weights.forget_steps(network.body)
    torch.testing.assert_close(network(image, image, step).detach(), before, rtol=1e-4, atol=1e-5)
    zeros = [name for name, value in network.named_parameters() if not value.any()]
    assert any("time_embed" in name for name in zeros)
    assert any("time_emb_proj" in name for name in zeros)


@pytest.mark.parametrize("name", ["compact", *PARTS])
def test_what_ships_is_stored_again_as_it_is(
    ship_weights: ModuleType, name: str, tmp_path: Path
) -> None:
    """Intervals are calibrated anew without the runs that the weights came from."""
    ship_weights._store(shipped_weights(name), tmp_path / "again.safetensors", {})
    shipped, again = (
        load_network(shipped_weights(name)),
        load_network(tmp_path / "again.safetensors"),
    )
    assert again.info == shipped.info
    old, new = shipped.network.state_dict(), again.network.state_dict()
    for key, value in old.items():
        assert torch.equal(new[key], value), key
