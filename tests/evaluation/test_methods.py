"""Where methods come from: runs, weights files, names, and other people's functions."""

from pathlib import Path

import numpy as np
import pytest
import torch

from prodm.errors import ProdmError
from prodm.evaluation import methods
from prodm.evaluation.methods import (
    Method,
    MethodCorrector,
    external_method,
    find_method,
    leave_alone,
    one_by_one,
)
from prodm.model.baselines import ModelSettings, build_network
from prodm.model.bridge import BrownianBridge
from prodm.model.checkpoint import save_checkpoint
from prodm.model.network import NetworkSettings
from prodm.model.sampler import SamplingSettings
from prodm.pairs.blocks import MARGIN, NO_MARGIN

SPACING_MM = (3.0, 0.5, 0.5)
BLOCKS = np.random.default_rng(0).normal(40, 60, (2, 16, 64, 64)).astype(np.float32)


def save_run(folder: Path, method: str = "prodm", *, fresh_noise: bool = True) -> Path:
    """Write an untrained network with weights that do something."""
    settings = ModelSettings(
        method=method,
        network=NetworkSettings(
            channels=(8, 8),
            attention=(False, False),
            num_res_blocks=1,
            num_head_channels=8,
            norm_groups=8,
            fold=4,
        ),
        bridge=BrownianBridge(noise_scale=0.04),
        sampling=SamplingSettings(num_jumps=3, fresh_noise=fresh_noise),
    )
    network = build_network(settings, seed=0)
    generator = torch.Generator().manual_seed(0)
    state = {
        name: value + 0.01 * torch.randn(value.shape, generator=generator)
        for name, value in network.state_dict().items()
    }
    folder.mkdir()
    save_checkpoint(folder / "best.safetensors", state, settings, {"steps": 0})
    return folder


def test_a_run_folder_and_its_weights_file_are_the_same_method(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    folder, file = find_method(str(run)), find_method(str(run / "best.safetensors"))
    assert (folder.name, file.name) == ("run", "best")
    assert folder.kind == file.kind == "prodm"
    assert folder.sha256 == file.sha256
    first, second = (method.correct(BLOCKS, SPACING_MM, 7) for method in (folder, file))
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - BLOCKS).max() > 0.1


def test_network_calls_are_counted_by_window(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    for jumps, calls in ((None, 3), (5, 5), (1, 1)):
        method = find_method(str(run), num_jumps=jumps)
        method.correct(BLOCKS, SPACING_MM, 0)
        assert method.calls is not None
        assert method.calls() == calls * 2 * 16


def test_who_draws_noise(tmp_path: Path) -> None:
    assert find_method(str(save_run(tmp_path / "a"))).is_random
    assert not find_method(str(save_run(tmp_path / "b", fresh_noise=False))).is_random
    assert not find_method(str(save_run(tmp_path / "c", "unet"))).is_random
    assert find_method(str(save_run(tmp_path / "d", "ddpm", fresh_noise=False))).is_random


def test_a_method_by_name_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        methods.BY_NAME, "phase", lambda: Method("phase", leave_alone, "phase", "phase")
    )
    assert find_method("phase").name == "phase"
    assert find_method("none").kind == "none"


def test_unknown_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProdmError, match="neither a run folder, nor a weights file"):
        find_method("nowhere")
    with pytest.raises(ProdmError, match=r"holds no best\.safetensors"):
        find_method(str(tmp_path))


def write_module(folder: Path, name: str, body: str) -> None:
    (folder / f"{name}.py").write_text("import numpy as np\n" + body)


def test_an_external_function_gets_blocks_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(
        tmp_path,
        "theirs",
        "def plain(block):\n"
        "    assert block.dtype == np.float32 and block.shape == (16, 64, 64)\n"
        "    block += 1\n"
        "    return block\n"
        "def with_spacing(block, spacing_mm):\n"
        "    return block.astype(np.float64) * spacing_mm[0]\n"
        "value = 3\n",
    )
    monkeypatch.chdir(tmp_path)
    plain = external_method("theirs:plain")
    before = BLOCKS.copy()
    np.testing.assert_array_equal(plain.correct(BLOCKS, SPACING_MM, 0), BLOCKS + 1)
    np.testing.assert_array_equal(BLOCKS, before)  # the function's own copy
    assert plain.sha256 is not None
    scaled = external_method("theirs:with_spacing").correct(BLOCKS, SPACING_MM, 0)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, BLOCKS * 3, rtol=1e-6)
    with pytest.raises(ProdmError, match="has no function value"):
        external_method("theirs:value")
    with pytest.raises(ProdmError, match="has no function nothing"):
        external_method("theirs:nothing")
    with pytest.raises(ProdmError, match="cannot import not_there"):
        external_method("not_there:correct")
    with pytest.raises(ProdmError, match="takes module:function"):
        external_method("theirs")


def test_bad_answers_of_external_functions_are_refused() -> None:
    with pytest.raises(ProdmError, match=r"theirs must return a block of shape \(16, 64, 64\)"):
        one_by_one(lambda block: block[0], "theirs")(BLOCKS, SPACING_MM, 0)
    with pytest.raises(ProdmError, match="theirs must return finite numbers"):
        one_by_one(lambda block: block * np.inf, "theirs")(BLOCKS, SPACING_MM, 0)


def test_a_method_corrects_whole_scans_too() -> None:
    corrector = MethodCorrector(find_method("identity"))
    assert (corrector.name, corrector.draws, corrector.sha256) == ("identity", False, None)
    np.testing.assert_array_equal(corrector(BLOCKS, SPACING_MM, steps=None, seed=0), BLOCKS)


def test_a_network_and_a_separator_make_one_method(tmp_path: Path) -> None:
    files = {}
    for kind in ("prodm", "unet", "separator", "reader", "focuser", "placer", "polisher"):
        num_levels = 4 if kind == "reader" else 2
        network = NetworkSettings(
            channels=(8,) * num_levels, attention=(False,) * num_levels, num_res_blocks=1,
            num_head_channels=8, norm_groups=8, fold=4 if kind != "reader" else 1,
        )  # fmt: skip
        settings = ModelSettings(method=kind, network=network)
        files[kind] = tmp_path / f"{kind}.safetensors"
        save_checkpoint(files[kind], build_network(settings, 0).state_dict(), settings, {})
    method = find_method(f"{files['prodm']}+{files['separator']}", num_jumps=2)
    assert method.name == "prodm + separator"
    assert method.is_random
    block = np.full((1, 16, 64, 64), 40, np.float32)  # nothing moves, and F is zero
    block[0, 4, 10:14, 10:14] = 100
    corrected = method.correct(block, (3.0, 0.5, 0.5), 0)
    np.testing.assert_allclose(corrected, block, atol=1e-3)
    assert method.calls is not None
    assert method.calls() == 0  # nothing moves, so that nobody listens to the network
    assert method.margin == MARGIN
    assert find_method("none").margin == find_method(str(files["unet"])).margin == NO_MARGIN
    with_reader = find_method("+".join(str(files[k]) for k in ("prodm", "separator", "reader")))
    assert with_reader.name == "prodm + separator + reader"
    assert with_reader.sha256 != method.sha256
    everything = ("prodm", "separator", "reader", "focuser", "placer", "polisher")
    with_all = find_method("+".join(str(files[k]) for k in everything))
    assert with_all.sha256 != with_reader.sha256
    phased = find_method(f"{files['separator']}+{files['reader']}")
    assert not phased.is_random  # where the motion is read, nothing is drawn
    np.testing.assert_allclose(phased.correct(block, (3.0, 0.5, 0.5), 0), block, atol=1e-3)
    with pytest.raises(ProdmError, match="a polisher and nothing else"):
        find_method("+".join(str(files[k]) for k in (*everything, "focuser")))
    with pytest.raises(ProdmError, match="holds a reader and no focuser"):
        find_method("+".join(str(files[k]) for k in ("separator", "reader", "reader")))
    for helper in ("focuser", "polisher"):
        with pytest.raises(ProdmError, match="corrects nothing by itself"):
            find_method(str(files[helper]))
    with pytest.raises(ProdmError, match="corrects nothing by itself"):
        find_method(str(files["reader"]))
    with pytest.raises(ProdmError, match="holds a prodm and no reader"):
        find_method(f"{files['separator']}+{files['prodm']}")
    with pytest.raises(ProdmError, match="holds a unet, which does not walk"):
        find_method(f"{files['unet']}+{files['separator']}")
    with pytest.raises(ProdmError, match="holds a prodm and no separator"):
        find_method(f"{files['prodm']}+{files['prodm']}")
