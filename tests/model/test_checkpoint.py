"""A network comes back from disk as it was, or the file is refused by name of what is wrong."""

import dataclasses
import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from prodm.errors import ProdmError
from prodm.model.baselines import AnyNetwork, ModelSettings, build_network, build_predict
from prodm.model.checkpoint import (
    FORMAT,
    load_network,
    read_tensors,
    save_checkpoint,
    write_tensors,
)
from prodm.model.network import NetworkSettings

SETTINGS = ModelSettings(
    network=NetworkSettings(
        channels=(8, 8),
        attention=(False, True),
        num_res_blocks=1,
        num_head_channels=8,
        norm_groups=4,
        fold=2,
    )
)
INFO = {"data_sha256": "00ff", "metrics": {"agatston_mae": 9.5}, "num_steps": 120}


def trained(settings: ModelSettings = SETTINGS) -> AnyNetwork:
    network = build_network(settings, seed=0)
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.05, generator=torch.Generator().manual_seed(1))
    return network


@pytest.mark.parametrize("method", ["prodm", "unet"])
def test_a_network_comes_back_as_it_was(tmp_path: Path, method: str) -> None:
    settings = dataclasses.replace(SETTINGS, method=method)
    network, path = trained(settings), tmp_path / "network.safetensors"
    save_checkpoint(path, network.state_dict(), settings, INFO)
    back = load_network(path)
    assert back.settings == settings
    assert back.info == INFO
    assert back.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    y = torch.rand(2, 3, 16, 16)
    before = build_predict(settings, network)(y, torch.Generator().manual_seed(0))
    after = build_predict(back.settings, back.network)(y, torch.Generator().manual_seed(0))
    assert (before - y).abs().max() > 1e-3
    assert torch.equal(before, after)


def test_the_same_network_makes_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_checkpoint(tmp_path / name, trained().state_dict(), SETTINGS, INFO)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_half_precision_halves_the_file_and_is_used_in_full_precision(tmp_path: Path) -> None:
    network = trained()
    save_checkpoint(tmp_path / "full", network.state_dict(), SETTINGS, INFO)
    save_checkpoint(tmp_path / "half", network.state_dict(), SETTINGS, INFO, half=True)
    assert (tmp_path / "half").stat().st_size < 0.7 * (tmp_path / "full").stat().st_size
    back = load_network(tmp_path / "half").network
    assert {value.dtype for value in back.state_dict().values()} == {torch.float32}
    for name, value in network.state_dict().items():
        torch.testing.assert_close(back.state_dict()[name], value, rtol=1e-3, atol=1e-4)


def test_weights_of_zero_take_no_space_and_come_back(tmp_path: Path) -> None:
    network = trained()
    largest = max(network.parameters(), key=lambda value: value.numel())
    save_checkpoint(tmp_path / "all", network.state_dict(), SETTINGS, INFO)
    largest.data.zero_()
    save_checkpoint(tmp_path / "less", network.state_dict(), SETTINGS, INFO)
    saved = (tmp_path / "all").stat().st_size - (tmp_path / "less").stat().st_size
    assert saved > 3.9 * largest.numel()
    back = load_network(tmp_path / "less").network.state_dict()
    for name, value in network.state_dict().items():
        assert torch.equal(back[name], value)


def refused(path: Path, match: str) -> None:
    with pytest.raises(ProdmError, match=match):
        load_network(path)


def test_files_that_are_no_checkpoints_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    refused(path, "there is no weights file")
    path.write_bytes(b"not at all")
    refused(path, "is not a safetensors file")
    save_file({"a": torch.zeros(2)}, path)
    refused(path, "its header has no entry 'prodm'")
    write_tensors(path, {"a": torch.zeros(2)}, {"format": "other 3"})
    refused(path, f"its format is 'other 3' instead of '{FORMAT}'")


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    save_checkpoint(path, trained().state_dict(), SETTINGS, INFO)
    path.write_bytes(path.read_bytes()[:-100])
    refused(path, "or it is cut short")


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path, name = tmp_path / "weights", "body.conv_in.conv.bias"
    state = trained().state_dict()

    save_checkpoint(path, {k: v for k, v in state.items() if k != name}, SETTINGS, INFO)
    refused(path, f"lacks the weights '{name}'")
    save_checkpoint(path, {**state, "body.extra": torch.zeros(1)}, SETTINGS, INFO)
    refused(path, r"has weights 'body\.extra' that its settings do not ask for")
    save_checkpoint(path, {**state, name: torch.zeros(9)}, SETTINGS, INFO)
    refused(path, rf"'{name}' in .* are \(9,\), but its settings ask for \(8,\)")
    save_checkpoint(path, {**state, name: torch.full((8,), torch.nan)}, SETTINGS, INFO)
    refused(path, f"'{name}' in .* not finite")


def test_settings_that_are_unknown_are_named(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    save_checkpoint(path, trained().state_dict(), SETTINGS, INFO)
    tensors, content = read_tensors(path)
    content["settings"]["bridge"]["wobble"] = 1
    write_tensors(path, tensors, content)
    refused(path, r"settings in .*bridge has no key 'wobble'")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    save_checkpoint(path, trained().state_dict(), SETTINGS, INFO)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_checkpoint(path, trained().state_dict(), SETTINGS, {"loss": float("nan")})
    assert path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]
