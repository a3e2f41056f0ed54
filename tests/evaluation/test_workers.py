"""Sharing a comparison out must change nothing of it."""

from functools import partial
from typing import Any

import numpy as np

from prodm.cli.evaluate import find_methods
from prodm.evaluation.comparison import Comparison, compare
from prodm.evaluation.patches import select
from prodm.evaluation.tables import tables_of
from prodm.evaluation.workers import compare_with_workers
from prodm.pairs.store import Pairs


def without_times(comparison: Comparison) -> Any:  # noqa: ANN401
    content = tables_of(comparison, None)
    for method in content["methods"]:
        del method["seconds_per_patch"]
    return content


def test_two_workers_compare_as_one_process_does(pairs: Pairs) -> None:
    selection = select(pairs)
    make = partial(find_methods, ("identity",), (), None, tissue_rests=True)
    alone = compare(selection, make())
    told: list[tuple[int, int]] = []
    shared = compare_with_workers(
        selection, make(), make, workers=2, progress=lambda done, total: told.append((done, total))
    )
    assert without_times(shared) == without_times(alone)
    assert shared.patches == alone.patches
    assert shared.scans == alone.scans
    for first, second in zip(shared.results, alone.results, strict=True):
        assert first.patches == second.patches
        assert first.invented == second.invented
        assert first.num_corrected == second.num_corrected
    assert len(shared.examples) == len(alone.examples) > 0
    for ours, theirs in zip(shared.examples, alone.examples, strict=True):
        assert ours.case == theirs.case
        np.testing.assert_array_equal(ours.still, theirs.still)
    assert told[-1] == (selection.num_patches * 2,) * 2
