"""From unblinded answers to the tables of the report.

Means and standard deviations are over all ratings, one per reader and case, as in the paper.
Tests are not: two readers who judge the same image are no independent witnesses of the method,
so differences are first averaged over the readers of a case, and the case is what counts. Each
reader is tested alone as well. A repeated case counts once, at its first showing; the second
measures the reader against themselves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from prodm.study.criteria import CRITERION_NAMES
from prodm.study.results import Results
from prodm.study.statistics import (
    friedman_test,
    holm,
    intraclass_correlation,
    signed_rank_test,
    weighted_kappa,
)

RANK = "overall_rank"
ALL_READERS = "all"
SIGNIFICANT = 0.05

# (reader, case, method) -> value, for one question
Table = dict[tuple[str, str, str], float]


@dataclass(frozen=True)
class SummaryRow:
    """Ratings of one method by one criterion."""

    criterion: str
    method: str
    num_ratings: int
    mean: float
    sd: float | None  # of a single rating there is none


@dataclass(frozen=True)
class ComparisonRow:
    """One paired test: ``method`` minus ``other``."""

    readers: str  # a name, or all
    criterion: str
    method: str
    other: str
    num_cases: int
    num_different: int
    mean_difference: float
    statistic: float
    p_value: float
    p_holm: float


@dataclass(frozen=True)
class RankingRow:
    """How often one method was put first, second, ..."""

    method: str
    mean_place: float
    counts: tuple[int, ...]  # by place


@dataclass(frozen=True)
class AgreementRow:
    """How well two sets of answers to one question agree."""

    kind: str  # between readers, all readers, within reader
    readers: str
    criterion: str
    num_pairs: int
    exact_share: float | None
    weighted_kappa: float | None
    icc_single: float | None
    icc_low: float | None
    icc_high: float | None
    icc_average: float | None


@dataclass(frozen=True)
class Analysis:
    """All tables of the report."""

    summary: tuple[SummaryRow, ...]
    comparisons: tuple[ComparisonRow, ...]
    ranking: tuple[RankingRow, ...]
    friedman_chi2: float | None
    friedman_p: float | None
    agreement: tuple[AgreementRow, ...]


def analyse(results: Results) -> Analysis:
    """Compute every table of the report."""
    first = {name: _table(results, name, repeats=False) for name in (*CRITERION_NAMES, RANK)}
    again = {name: _table(results, name, repeats=True) for name in (*CRITERION_NAMES, RANK)}
    comparisons: list[ComparisonRow] = []
    for readers in (ALL_READERS, *results.readers) if len(results.readers) > 1 else (ALL_READERS,):
        chosen = results.readers if readers == ALL_READERS else (readers,)
        for family in (CRITERION_NAMES, (RANK,)):
            comparisons += _compare(results.methods, first, readers, chosen, family)
    friedman = friedman_test(_mean_places(results, first[RANK]))
    return Analysis(
        tuple(_summary(results.methods, first)),
        tuple(comparisons),
        tuple(_ranking(results.methods, first[RANK])),
        friedman[0] if friedman else None,
        friedman[1] if friedman else None,
        (*_between(results.readers, first), *_within(results.readers, first, again)),
    )


def _table(results: Results, criterion: str, *, repeats: bool) -> Table:
    if criterion == RANK:
        return {
            (p.reader, p.case, p.method): float(p.place)
            for p in results.placings
            if p.is_repeat == repeats
        }
    return {
        (r.reader, r.case, r.method): float(r.score)
        for r in results.ratings
        if r.criterion == criterion and r.is_repeat == repeats
    }


def _summary(methods: Sequence[str], tables: dict[str, Table]) -> Iterable[SummaryRow]:
    for criterion in CRITERION_NAMES:
        for method in methods:
            scores = [v for (_, _, m), v in tables[criterion].items() if m == method]
            if scores:
                sd = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
                yield SummaryRow(criterion, method, len(scores), float(np.mean(scores)), sd)


def case_differences(table: Table, readers: Sequence[str], method: str, other: str) -> list[float]:
    """Return ``method`` minus ``other``, case by case, averaged over readers who judged both."""
    by_case: dict[str, list[float]] = {}
    for (reader, case, m), value in table.items():
        if m == method and reader in readers and (reader, case, other) in table:
            by_case.setdefault(case, []).append(value - table[reader, case, other])
    return [float(np.mean(by_case[case])) for case in sorted(by_case)]


def _compare(
    methods: Sequence[str],
    tables: dict[str, Table],
    label: str,
    readers: Sequence[str],
    criteria: Sequence[str],
) -> list[ComparisonRow]:
    """Test all pairs of methods by all criteria of a family, corrected together."""
    wanted = [(c, a, b) for c in criteria for b, a in combinations(methods, 2)]
    tests = [signed_rank_test(case_differences(tables[c], readers, a, b)) for c, a, b in wanted]
    corrected = holm([test.p_value for test in tests])
    return [
        ComparisonRow(
            label,
            criterion,
            method,
            other,
            test.num_pairs,
            test.num_different,
            test.mean_difference,
            test.statistic,
            test.p_value,
            p_holm,
        )
        for (criterion, method, other), test, p_holm in zip(wanted, tests, corrected, strict=True)
        if test.num_pairs
    ]


def _ranking(methods: Sequence[str], table: Table) -> Iterable[RankingRow]:
    for method in methods:
        places = [int(v) for (_, _, m), v in table.items() if m == method]
        if places:
            counts = tuple(places.count(place) for place in range(1, len(methods) + 1))
            yield RankingRow(method, float(np.mean(places)), counts)


def _mean_places(results: Results, table: Table) -> list[list[float]]:
    """Return mean places [cases, methods], over the readers who ranked the whole case."""
    rows = []
    for case in results.cases:
        complete = [
            [table[reader, case, method] for method in results.methods]
            for reader in results.readers
            if all((reader, case, method) in table for method in results.methods)
        ]
        if complete:
            rows.append(np.mean(complete, axis=0).tolist())
    return rows


def _between(readers: Sequence[str], tables: dict[str, Table]) -> Iterable[AgreementRow]:
    """Compare readers two by two, and all of them at once where there are more."""
    for criterion, table in tables.items():
        for one, two in combinations(readers, 2):
            pairs = [
                (value, table[two, case, method])
                for (reader, case, method), value in table.items()
                if reader == one and (two, case, method) in table
            ]
            yield _agreement("between readers", f"{one}, {two}", criterion, pairs)
        if len(readers) > 2:
            yield _agreement("all readers", ALL_READERS, criterion, _rated_by_all(readers, table))


def _rated_by_all(readers: Sequence[str], table: Table) -> list[tuple[float, ...]]:
    targets = {(case, method) for _, case, method in table}
    return [
        tuple(table[reader, *target] for reader in readers)
        for target in sorted(targets)
        if all((reader, *target) in table for reader in readers)
    ]


def _within(
    readers: Sequence[str], first: dict[str, Table], again: dict[str, Table]
) -> Iterable[AgreementRow]:
    """Compare each reader with themselves, on cases that came twice."""
    for criterion, table in again.items():
        for reader in readers:
            pairs = [
                (first[criterion][target], value)
                for target, value in table.items()
                if target[0] == reader and target in first[criterion]
            ]
            if pairs:
                yield _agreement("within reader", reader, criterion, pairs)


def _agreement(
    kind: str, readers: str, criterion: str, rows: Sequence[tuple[float, ...]]
) -> AgreementRow:
    scores = np.asarray(rows, dtype=float).reshape(len(rows), len(rows[0]) if rows else 2)
    icc = intraclass_correlation(scores)
    exact = float(np.mean(np.all(scores == scores[:, :1], axis=1))) if len(rows) else None
    return AgreementRow(
        kind,
        readers,
        criterion,
        len(rows),
        exact,
        _mean_kappa(scores) if len(rows) else None,
        icc.single if icc else None,
        icc.single_low if icc else None,
        icc.single_high if icc else None,
        icc.average if icc else None,
    )


def _mean_kappa(scores: NDArray[np.float64]) -> float | None:
    """Weighted kappa, of more than two readers the mean over their pairs (Light's kappa)."""
    pairs = combinations(range(scores.shape[1]), 2)
    kappas = [weighted_kappa(scores[:, one], scores[:, two]) for one, two in pairs]
    defined = [kappa for kappa in kappas if kappa is not None]
    return float(np.mean(defined)) if defined else None
