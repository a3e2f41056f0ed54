"""What is stored comes back, damage is noticed, and no patient is in two parts."""

from pathlib import Path

import numpy as np
import pytest

from prodm.errors import ProdmError
from prodm.pairs.store import Pairs, ScanPairs, finish, scan_is_stored, split_of, write_scan

SHAPE = (4, 6, 6)


def scan_pairs(scan: str, num_motions: int = 3) -> ScanPairs:
    rng = np.random.default_rng(len(scan))
    calcium = np.zeros((2, *SHAPE), np.uint8)
    calcium[0, 1, 2, 3] = 1
    trajectory = {"profile": "jitter-small", "num_angles": 180, "span_deg": 180.0, "start_deg": 0.0}
    return ScanPairs(
        scan=scan,
        patient=scan.split("_")[0],
        spacing_mm=(3.0, 0.5, 0.5),
        corners=((-2, 0, 7), (1, 2, 3)),
        trajectories=(trajectory,) * num_motions,
        amplitudes_px=(5.0,) * num_motions,
        still=rng.integers(-200, 800, (2, *SHAPE), np.int16),
        background=rng.integers(-200, 800, (2, *SHAPE), np.int16),
        calcium=calcium,
        moving=rng.integers(-200, 800, (2, num_motions, *SHAPE), np.int16),
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for scan in ("ann_1", "ann_2", "bob_1"):
        write_scan(tmp_path, scan_pairs(scan))
    finish(tmp_path, {"seed": 0}, [("eve", "no slices")])
    return tmp_path


def test_blocks_come_back_as_they_were_stored(store: Path) -> None:
    pairs, expected = Pairs(store), scan_pairs("bob_1")
    row = next(row for row in pairs.blocks if row.scan == "bob_1" and row.block == 1)
    assert np.array_equal(pairs.read("still", row), expected.still[1])
    assert np.array_equal(pairs.read("background", row), expected.background[1])
    assert np.array_equal(pairs.read_moving(row, 2), expected.moving[1, 2])
    assert (row.corner_z, row.corner_y, row.corner_x) == (1, 2, 3)
    assert row.spacing_mm == (3.0, 0.5, 0.5)
    assert pairs.trajectories("bob_1")[0]["profile"] == "jitter-small"


def test_the_tables_say_what_is_there(store: Path) -> None:
    pairs = Pairs(store)
    assert [(row.scan, row.block) for row in pairs.blocks] == [
        (scan, block) for scan in ("ann_1", "ann_2", "bob_1") for block in (0, 1)
    ]
    assert [row.calcium_voxels for row in pairs.blocks] == [1, 0] * 3
    assert len(pairs.motions) == 9
    assert (store / "skipped.csv").read_text().split() == ["scan,reason", "eve,no", "slices"]
    assert pairs.summary["calcium_free_blocks"] == 3


def test_the_scans_of_one_patient_stay_together(store: Path) -> None:
    parts = {row.scan: row.split for row in Pairs(store).blocks}
    assert parts["ann_1"] == parts["ann_2"] == split_of("ann")


def test_the_parts_have_their_shares() -> None:
    parts = [split_of(str(n)) for n in range(10_000)]
    assert parts.count("test") == pytest.approx(2000, rel=0.05)
    assert parts.count("validation") == pytest.approx(800, rel=0.1)


def test_an_unfinished_store_is_refused(tmp_path: Path) -> None:
    write_scan(tmp_path, scan_pairs("ann_1"))
    with pytest.raises(ProdmError, match="not a finished store of pairs; run prodm build again"):
        Pairs(tmp_path)
    with pytest.raises(ProdmError, match="make it with prodm build"):
        Pairs(tmp_path / "nowhere")


def test_a_scan_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    broken = scan_pairs("ann_1")
    object.__setattr__(broken, "moving", "not an array")
    with pytest.raises(AttributeError):
        write_scan(tmp_path, broken)
    assert not scan_is_stored(tmp_path, "ann_1")
    assert list((tmp_path / "scans").iterdir()) == []


def test_only_stills_can_be_stored(tmp_path: Path) -> None:
    write_scan(tmp_path, scan_pairs("ann_1", num_motions=0))
    finish(tmp_path, {}, [])
    pairs = Pairs(tmp_path)
    assert pairs.motions == ()
    with pytest.raises(ProdmError, match="scan ann_1 has no stored moving"):
        pairs.read_moving(pairs.blocks[0], 0)


@pytest.mark.parametrize("position", [0.1, 0.3, 0.5, 0.7, 0.95])
def test_a_damaged_block_is_named(store: Path, position: float) -> None:
    shard = next(
        path
        for path in (store / "scans/bob_1/still").rglob("*")
        if path.is_file() and path.name != "zarr.json"
    )
    content = bytearray(shard.read_bytes())
    content[int(position * len(content))] ^= 0xFF
    shard.write_bytes(content)
    pairs = Pairs(store)
    rows = [row for row in pairs.blocks if row.scan == "bob_1"]

    def read_all() -> None:
        for row in rows:
            pairs.read("still", row)

    with pytest.raises(ProdmError, match=r"of scan bob_1 .* is damaged .* run prodm build again"):
        read_all()


def test_nothing_usable_is_an_error_with_the_first_reason(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    with pytest.raises(ProdmError, match=r"no scan could be used.*no slices"):
        finish(tmp_path, {}, [("eve", "no slices")])
