"""A store is the same however it was built, and one bad scan does not spoil the rest."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from prodm.errors import ProdmError
from prodm.files.coca_writer import write_gated
from prodm.files.nifti import write_nifti, write_nifti_mask
from prodm.pairs.build import BuildSettings, Source, build
from prodm.pairs.sources import find_sources
from prodm.pairs.store import Pairs
from prodm.volume import Grid, Volume

SETTINGS = BuildSettings(per_scan=3, num_angles=24)
SHAPE = (24, 128, 128)


def made_up_scan(seed: int) -> tuple[Volume, NDArray[np.uint8]]:
    """Soft tissue with grain and two lesions."""
    rng = np.random.default_rng(seed)
    hu = ndimage.gaussian_filter(rng.normal(40, 60, SHAPE), (0, 1, 1))
    calcium = np.zeros(SHAPE)
    calcium[9:12, 40:46, 60:63] = 600
    calcium[13:15, 80:83, 50:56] = 500
    hu += ndimage.gaussian_filter(calcium, (0.4, 0.8, 0.8))
    labels = (ndimage.binary_dilation(calcium > 0) & (hu >= 130)).astype(np.uint8)
    return Volume(np.rint(hu).astype(np.int16), Grid(SHAPE, (3.0, 0.5, 0.5))), labels


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four scans of three patients, with hearts."""
    root: Path = tmp_path_factory.mktemp("scans")
    for n in range(4):
        volume, labels = made_up_scan(n)
        write_nifti(root / f"scan{n}.nii.gz", volume)
        write_nifti_mask(root / f"scan{n}_calcium.nii.gz", labels, volume.grid)
        write_nifti_mask(root / f"scan{n}_heart.nii.gz", np.ones(SHAPE, np.uint8), volume.grid)
    (root / "patients.csv").write_text("name,patient\nscan0,ann\nscan1,ann\n")
    return root


@pytest.fixture(scope="module")
def built(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store: Path = tmp_path_factory.mktemp("stores") / "one"
    build(find_sources(folder), store, SETTINGS)
    return store


def contents(store: Path) -> dict[str, str]:
    return {
        str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def test_blocks_hold_the_scan_and_its_calcium_moved(built: Path) -> None:
    pairs = Pairs(built)
    volume, _ = made_up_scan(2)
    row = next(row for row in pairs.blocks if row.scan == "scan2" and row.calcium_voxels)
    still, background = pairs.read("still", row), pairs.read("background", row)
    z, y, x = (max(0, -c) for c in (row.corner_z, row.corner_y, row.corner_x))
    corner = (row.corner_z + z, row.corner_y + y, row.corner_x + x)
    assert still[z, y, x] == volume.hu[corner]
    assert row.calcium_voxels == int((pairs.read("calcium", row) > 0).sum()) > 0
    excess_sum = float((still - background).sum())
    assert excess_sum > 0
    for motion in range(3):
        moving = pairs.read_moving(row, motion)
        assert not np.array_equal(moving, still)
        assert float((moving - background).sum()) == pytest.approx(excess_sum, rel=0.1)
    assert len({row.patient for row in pairs.blocks}) == 3


def test_calcium_free_blocks_belong_to_the_store(built: Path) -> None:
    assert Pairs(built).summary["calcium_free_blocks"] > 0


def test_two_workers_build_the_same_store(folder: Path, built: Path, tmp_path: Path) -> None:
    build(find_sources(folder), tmp_path / "two", SETTINGS, workers=2)
    assert contents(tmp_path / "two") == contents(built)


def test_another_seed_builds_another_store(folder: Path, built: Path, tmp_path: Path) -> None:
    build(find_sources(folder)[:1], tmp_path / "other", replace(SETTINGS, seed=1))
    ours = {k: v for k, v in contents(tmp_path / "other").items() if "moving/c" in k}
    assert ours.items().isdisjoint(contents(built).items())


RESUME = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_build import SETTINGS
from prodm.pairs.build import build
from prodm.pairs.sources import find_sources
if __name__ == "__main__":
    build(find_sources(Path({folder!r})), Path({store!r}), SETTINGS)
"""


def test_a_killed_build_resumes_to_the_same_store(
    folder: Path, built: Path, tmp_path: Path
) -> None:
    store, script = tmp_path / "killed", tmp_path / "run.py"
    tests = str(Path(__file__).parent)
    script.write_text(RESUME.format(tests=tests, folder=str(folder), store=str(store)))
    process = subprocess.Popen([sys.executable, script])
    deadline = time.monotonic() + 120
    while not list(store.glob("scans/*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (store / "store.json").exists()
    with pytest.raises(ProdmError, match="not a finished store"):
        Pairs(store)
    build(find_sources(folder), store, SETTINGS)
    assert contents(store) == contents(built)


def test_an_unfinished_store_goes_on_only_with_its_own_settings(
    folder: Path, tmp_path: Path
) -> None:
    sources = find_sources(folder)[:1]
    build(sources, tmp_path / "store", SETTINGS)
    with pytest.raises(ProdmError, match="was begun with other scans or settings"):
        build(sources, tmp_path / "store", replace(SETTINGS, seed=9))
    with pytest.raises(ProdmError, match="exists and is not a store of pairs"):
        build(sources, folder, SETTINGS)


def test_a_bad_scan_is_named_and_the_rest_go_on(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.nii.gz"
    bad.write_bytes(b"not a scan")
    good = find_sources(folder)[0]
    sources = [good, Source("bad", "eve", "files", str(bad), good.mask)]
    build(sources, tmp_path / "store", SETTINGS)
    assert [row.scan for row in Pairs(tmp_path / "store").blocks].count("bad") == 0
    assert "bad," in (tmp_path / "store/skipped.csv").read_text()
    with pytest.raises(ProdmError, match="no scan could be used"):
        build(sources[1:], tmp_path / "nothing", SETTINGS)


def test_a_full_disk_leaves_no_broken_store(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    store = tmp_path / "store"
    with monkeypatch.context() as patch:
        patch.setattr("prodm.pairs.build.write_scan", full)
        with pytest.raises(OSError, match="No space left"):
            build(find_sources(folder)[:1], store, SETTINGS)
    assert not (store / "store.json").exists()
    build(find_sources(folder)[:1], store, SETTINGS)
    assert Pairs(store).blocks


def test_a_coca_tree_is_a_source(tmp_path: Path) -> None:
    volume, labels = made_up_scan(0)
    write_gated(tmp_path / "coca", "7", volume, labels)
    (source,) = find_sources(tmp_path / "coca")
    assert (source.scan, source.kind) == ("coca-7", "coca")


def test_only_held_out_patients_need_stored_motions(folder: Path, tmp_path: Path) -> None:
    build(find_sources(folder), tmp_path / "store", replace(SETTINGS, moving="held-out"))
    pairs = Pairs(tmp_path / "store")
    moved = {motion.scan for motion in pairs.motions}
    assert {row.scan for row in pairs.blocks if row.split != "train"} == moved


def test_a_folder_without_pairs_of_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProdmError, match=r"holds no NAME.nii.gz with NAME_calcium.nii.gz"):
        find_sources(tmp_path)
    with pytest.raises(ProdmError, match="is not a folder"):
        find_sources(tmp_path / "nowhere")


def test_the_plan_says_what_is_to_be_built(built: Path) -> None:
    plan = json.loads((built / "plan.json").read_text())
    assert [scan["scan"] for scan in plan["scans"]] == ["scan0", "scan1", "scan2", "scan3"]


@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_that_loses_a_worker_builds_the_same_store(
    folder: Path, built: Path, tmp_path: Path
) -> None:
    from distributed import LocalCluster

    cluster = LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True
    )
    with cluster:
        victim = next(iter(cluster.workers.values()))
        killed: list[int] = []

        def kill_one(done: int, total: int) -> None:
            if done == 1 and not killed:
                killed.append(victim.pid)
                os.kill(victim.pid, signal.SIGKILL)

        build(
            find_sources(folder),
            tmp_path / "dask",
            SETTINGS,
            dask_address=cluster.scheduler_address,
            progress=kill_one,
        )
    assert killed
    assert contents(tmp_path / "dask") == contents(built)


def test_a_dask_address_without_a_scheduler_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ProdmError, match="no Dask scheduler answers at"):
        build(
            find_sources(folder),
            tmp_path / "store",
            SETTINGS,
            dask_address="tcp://127.0.0.1:9",
        )
