"""Weights files become correctors, or are refused by what does not fit."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from prodm.correction import Identity, correct, load_corrector, make_corrector
from prodm.correction import loading as module
from prodm.correction.geometry import SpacingRange
from prodm.errors import ProdmError
from prodm.model.baselines import ModelSettings, build_network
from prodm.model.bridge import BrownianBridge
from prodm.model.checkpoint import save_checkpoint
from prodm.model.network import NetworkSettings
from prodm.pairs.blocks import MARGIN, NO_MARGIN

TINY = NetworkSettings(
    num_slices=3,
    channels=(8, 8),
    attention=(False, False),
    num_res_blocks=1,
    num_head_channels=8,
    norm_groups=8,
    fold=2,
)


def write_weights(path: Path, info: dict[str, Any] | None = None, **changes: Any) -> Path:  # noqa: ANN401
    """Write a tiny network whose zero layers were woken, so that it changes images."""
    arguments: dict[str, Any] = {"network": TINY, "bridge": BrownianBridge(1000, 0.04)} | changes
    settings = ModelSettings(**arguments)
    state = build_network(settings, seed=0).state_dict()
    generator = torch.Generator().manual_seed(2)
    for name, value in state.items():
        if value.ndim > 1 and not value.any():
            state[name] = 0.02 * torch.randn(value.shape, generator=generator)
    save_checkpoint(path, state, settings, info or {})
    return path


def test_a_network_corrects_and_the_seed_decides_how(tmp_path: Path, moved: Any) -> None:  # noqa: ANN401
    corrector = load_corrector(write_weights(tmp_path / "tiny.safetensors"))
    assert corrector.name == "prodm, tiny"
    assert len(corrector.sha256 or "") == 64
    assert (corrector.num_slices, corrector.draws) == (3, True)
    first, again, other = (
        correct(moved.moving, moved.heart, corrector, steps=2, samples=2, seed=seed)
        for seed in (1, 1, 2)
    )
    assert first.volume.hu.tobytes() == again.volume.hu.tobytes() != other.volume.hu.tobytes()
    assert not np.array_equal(first.volume.hu, moved.moving.hu)
    assert 0 < first.corrector_seconds < first.seconds


def test_one_thread_or_two_give_the_same_score(tmp_path: Path, moved: Any) -> None:  # noqa: ANN401
    corrector = load_corrector(write_weights(tmp_path / "tiny.safetensors"))
    scores = []
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        result = correct(moved.moving, moved.heart, corrector, steps=2, samples=2)
        assert result.spread is not None
        scores.append(result.spread.scores)
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    ("changes", "draws"),
    [
        ({"method": "unet"}, False),
        ({"bridge": BrownianBridge(1000, 0.0)}, False),
        ({"method": "ddpm"}, True),
    ],
)
def test_methods_that_do_not_draw_say_so(
    tmp_path: Path, changes: dict[str, Any], draws: bool
) -> None:
    path = write_weights(tmp_path / "tiny.safetensors", **changes)
    assert load_corrector(path).draws == draws


def test_weights_may_state_their_name_and_spacing(tmp_path: Path) -> None:
    info = {"name": "compact 1", "spacing_range_mm": {"slice": [2.5, 6], "pixel": [0.4, 0.9]}}
    corrector = load_corrector(write_weights(tmp_path / "tiny.safetensors", info))
    assert corrector.name == "compact 1"
    assert corrector.known == SpacingRange((2.5, 6.0), (0.4, 0.9))


def test_a_spacing_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "tiny.safetensors", {"spacing_range_mm": [1, 2]})
    with pytest.raises(ProdmError, match=r"states its spacing_range_mm as \[1, 2\]"):
        load_corrector(path)


def test_a_network_of_another_image_size_is_refused(tmp_path: Path) -> None:
    network = NetworkSettings(
        num_slices=3, channels=(8, 8), attention=(False, False), num_res_blocks=1,
        num_head_channels=8, norm_groups=8, fold=6,
    )  # fmt: skip
    path = write_weights(tmp_path / "tiny.safetensors", network=network)
    with pytest.raises(ProdmError, match="a multiple of 12, and blocks have 64 pixels"):
        load_corrector(path)


def test_batches_follow_the_size_of_the_network_alone() -> None:
    assert module._max_windows(TINY) == 32
    assert module._max_windows(NetworkSettings()) < 32


def test_methods_are_chosen_by_name() -> None:
    assert make_corrector("identity", None, tissue_rests=True) == Identity()
    with pytest.raises(ProdmError, match="method must be one of prodm, network"):
        make_corrector("magic", None, tissue_rests=True)


def test_missing_weights_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProdmError, match="there is no weights file"):
        make_corrector("network", tmp_path / "none.safetensors", tissue_rests=True)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "correction" / "loading.py"))
    with pytest.raises(ProdmError, match=r"ships without compact\.safetensors; name a file"):
        make_corrector("network", None, tissue_rests=True)


def test_images_and_the_same_turned_by_half_are_told_alike() -> None:
    separator = cast("Any", make_corrector("phase-net", None, tissue_rests=True)).separator
    num_slices, generator = separator.num_slices, torch.Generator().manual_seed(0)
    shown = {
        separator.predict: torch.rand(2, num_slices, 32, 32, generator=generator),
        separator.focuser[0]: 200 * torch.randn(2, 5 * num_slices, 32, 32, generator=generator),
        separator.polisher[0]: 200 * torch.randn(2, 5 * num_slices, 32, 32, generator=generator),
    }
    for predict, windows in shown.items():
        answer, turned = (predict(images, generator) for images in (windows, windows.flip(-2, -1)))
        torch.testing.assert_close(turned.flip(-2, -1), answer)
        assert answer.std() > 0


@pytest.mark.parametrize("tissue_rests", [True, False])
def test_methods_that_ship_know_whether_tissue_rests(tissue_rests: bool) -> None:
    prodm: Any = make_corrector("prodm", None, tissue_rests=tissue_rests)
    phase_net: Any = make_corrector("phase-net", None, tissue_rests=tissue_rests)
    for separator in (prodm.phases.separator, phase_net.separator):
        assert separator.tissue_rests == tissue_rests
        assert separator.placer is not None
    for corrector in (prodm, phase_net):  # what lies around a block helps where tissue rests
        assert corrector.margin == (MARGIN if tissue_rests else NO_MARGIN)
