"""The race over a large scan does the work it claims, and its numbers add up."""

from pathlib import Path

import pytest

from prodm.benchmarks.correction import PLAQUES_ZYX, made_up_scan, race
from prodm.correction import Identity, correct
from prodm.model.baselines import ModelSettings, build_network
from prodm.model.checkpoint import save_checkpoint
from prodm.model.network import NetworkSettings


def test_the_made_up_scan_has_one_block_for_each_plaque() -> None:
    volume, region = made_up_scan()
    result = correct(volume, region, Identity())
    assert len(result.rois) == len(PLAQUES_ZYX) == 5
    assert volume.shape == (135, 512, 512)


@pytest.mark.slow
def test_the_race_measures_time_memory_and_errors(tmp_path: Path) -> None:
    network = NetworkSettings(
        channels=(8, 8), attention=(False, False), num_res_blocks=1, num_head_channels=8,
        norm_groups=8, fold=2,
    )  # fmt: skip
    settings = ModelSettings(network=network)
    path = tmp_path / "tiny.safetensors"
    save_checkpoint(path, build_network(settings, seed=0).state_dict(), settings, {})
    result = race(path, steps=1, samples=1, phantoms=1)
    network, prodm = result["rows"]
    assert (network["method"], prodm["method"]) == ("network", "prodm")
    for row in result["rows"]:
        assert row["blocks"] == 5
        assert 0 < row["network_share"] < 1
        assert row["corrector_s"] + row["rest_s"] == pytest.approx(row["seconds"])
        assert row["memory_mib"] > 100
    assert result["times_faster"] > 0
    errors = result["errors"]
    assert list(errors) == [
        "uncorrected", *(f"{method}, {n}" for method in ("network", "prodm") for n in (1, 2, 4, 10))
    ]  # fmt: skip
    assert errors["network, 1"] == errors["network, 10"]  # untrained
    assert errors["network, 1"] == pytest.approx(errors["uncorrected"])
