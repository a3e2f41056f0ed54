"""The three ways of handing blocks over must differ in nothing else."""

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from prodm.evaluation.methods import Blocks, Method
from prodm.evaluation.patches import select
from prodm.pairs.store import Pairs, finish, write_scan
from prodm.volume import Vector


@pytest.fixture(scope="module")
def pairs(
    load_script: Callable[[str], ModuleType], tmp_path_factory: pytest.TempPathFactory
) -> Pairs:
    made = load_script("tests/evaluation/conftest.py")
    folder = tmp_path_factory.mktemp("pairs")
    for patient in made.patients_of("test", 1):
        write_scan(folder, made.scan_of(patient))
    finish(folder, {"seed": 0}, [])
    return Pairs(folder)


def test_blocks_are_handed_over_alone_together_and_mixed(
    load_script: Callable[[str], ModuleType], pairs: Pairs
) -> None:
    sharing = load_script("benchmarks/sharing.py")
    handed: list[Blocks] = []

    def correct(blocks: Blocks, spacing_mm: Vector, seed: int) -> Blocks:
        handed.append(blocks)
        return blocks

    selection = select(pairs, "test")
    rows = sharing.compare(selection, Method("none", correct, "none", "none"), 0)
    (scan,) = selection.read()
    num_blocks, num_motions = len(scan.rows), len(scan.motions)
    assert num_blocks > 1
    assert num_motions > 1
    sizes = [len(blocks) for blocks in handed]
    assert sizes == (num_motions + 1) * [*[1] * num_blocks, num_blocks]
    for n in range(num_blocks):
        motion = scan.motions[n % num_motions]
        moving = selection.read_moving(scan, motion)[n]
        np.testing.assert_array_equal(handed[-1][n], moving)
    assert str(rows["alone"]) == str(rows["together"]) == str(rows["not at all"])
    assert len(rows["mixed, alone"].outcomes) == sum(scan.has_calcium)
    assert len(rows["together"].outcomes) == num_motions * sum(scan.has_calcium)
