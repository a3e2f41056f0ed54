"""A simulated study must find a winner that is there, and none that is not."""

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from prodm.study.analysis import ALL_READERS, RANK, Analysis, analyse, case_differences
from prodm.study.criteria import CRITERION_NAMES
from prodm.study.results import Placing, Rating, Results
from prodm.study.statistics import holm, signed_rank_test

METHODS = ("original", "unet", "prodm")


def results_of(
    scores: NDArray[np.int_], repeats: NDArray[np.int_] | None = None, readers: int | None = None
) -> Results:
    """Build results from scores [readers, cases, methods, criteria]."""
    num_readers, num_cases, _, _ = scores.shape
    names = tuple(f"reader {n}" for n in range(num_readers))
    cases = tuple(f"case {n}" for n in range(num_cases))
    ratings, placings = [], []
    for is_repeat, table in ((False, scores), (True, repeats)):
        if table is None:
            continue
        for r, c, m, k in np.ndindex(table.shape):
            where = (names[r], cases[c], is_repeat, f"M{m + 1}", METHODS[m])
            ratings.append(Rating(*where, CRITERION_NAMES[k], int(table[r, c, m, k])))
        for r, c in np.ndindex(table.shape[:2]):
            order = np.argsort(np.argsort(-table[r, c].sum(axis=1), kind="stable"), kind="stable")
            for m, place in enumerate(order):
                where = (names[r], cases[c], is_repeat, f"M{m + 1}", METHODS[m])
                placings.append(Placing(*where, int(place) + 1))
    return Results("t", METHODS, cases, names, (), tuple(ratings), tuple(placings), ())


def simulated_scores(
    rng: np.random.Generator, effects: tuple[float, float, float], num_cases: int = 30
) -> NDArray[np.int_]:
    """Likert scores of two readers; both see what a method did to a case, so they correlate."""
    case = rng.normal(0, 0.6, (1, num_cases, 1, 1))
    method_in_case = rng.normal(0, 0.6, (1, num_cases, 3, 1))
    noise = rng.normal(0, 0.5, (2, num_cases, 3, 3))
    latent = 2.5 + np.array(effects)[:, None] + case + method_in_case + noise
    return np.clip(np.rint(latent), 1, 5).astype(int)


def found(analysis: Analysis) -> set[tuple[str, str, str]]:
    return {
        (row.criterion, row.method, row.other)
        for row in analysis.comparisons
        if row.readers == ALL_READERS and row.criterion != RANK and row.p_holm < 0.05
    }


def test_a_known_winner_is_found() -> None:
    scores = simulated_scores(np.random.default_rng(0), (-1.0, -1.0, 0.5))
    analysis = analyse(results_of(scores))
    wins = {(c, "prodm", other) for c in CRITERION_NAMES for other in ("original", "unet")}
    assert found(analysis) == wins
    assert min(analysis.ranking, key=lambda row: row.mean_place).method == "prodm"
    assert analysis.friedman_p is not None
    assert analysis.friedman_p < 0.001


def test_without_a_winner_false_findings_stay_at_their_rate() -> None:
    rng = np.random.default_rng(1)
    num_studies, any_found, single_found = 300, 0, 0
    for _ in range(num_studies):
        scores = simulated_scores(rng, (0.0, 0.0, 0.0)).mean(axis=0)  # case by case
        p_values = [
            signed_rank_test(scores[:, a, k] - scores[:, b, k]).p_value
            for k in range(3)
            for a, b in combinations(range(3), 2)
        ]
        any_found += min(holm(p_values)) < 0.05
        single_found += p_values[0] < 0.05
    assert any_found / num_studies < 0.08  # 5 % and three standard errors at most
    assert 0.02 < single_found / num_studies < 0.09  # near 5 %: not blind either


def test_the_rate_holds_through_the_whole_analysis() -> None:
    rng = np.random.default_rng(2)
    studies = [results_of(simulated_scores(rng, (0, 0, 0), num_cases=14)) for _ in range(40)]
    assert sum(bool(found(analyse(study))) for study in studies) <= 7  # P(more) < 0.002 at 5 %


def test_treating_readers_as_independent_would_find_too_much() -> None:
    rng = np.random.default_rng(3)
    pooled = 0
    for _ in range(200):
        scores = simulated_scores(rng, (0.0, 0.0, 0.0))
        pooled += signed_rank_test((scores[:, :, 0, 0] - scores[:, :, 1, 0]).ravel()).p_value < 0.05
    assert pooled / 200 > 0.09


def test_summary_worked_by_hand() -> None:
    scores = np.full((2, 2, 3, 3), 3)
    scores[:, :, 2, 0] = [[5, 4], [4, 3]]
    rows = {(r.criterion, r.method): r for r in analyse(results_of(scores)).summary}
    row = rows["motion_suppression", "prodm"]
    assert (row.num_ratings, row.mean) == (4, 4.0)
    assert row.sd == pytest.approx(np.sqrt(2 / 3))
    assert rows["vessel_fidelity", "unet"].sd == 0


def test_differences_are_averaged_over_readers_who_judged_both() -> None:
    table = {
        ("A", "1", "x"): 5.0, ("A", "1", "y"): 2.0, ("B", "1", "x"): 3.0, ("B", "1", "y"): 2.0,
        ("A", "2", "x"): 1.0, ("A", "2", "y"): 4.0, ("B", "2", "x"): 5.0,
    }  # fmt: skip
    assert case_differences(table, ["A", "B"], "x", "y") == [2.0, -3.0]
    assert case_differences(table, ["B"], "x", "y") == [1.0]


def test_ranking_counts_places() -> None:
    scores = np.ones((2, 3, 3, 3), dtype=int)
    scores[:, :, 2] = 5
    scores[0, 0, 1] = 3
    ranking = {row.method: row for row in analyse(results_of(scores)).ranking}
    assert ranking["prodm"].counts == (6, 0, 0)
    assert ranking["unet"].counts == (0, 1, 5)
    assert ranking["prodm"].mean_place == 1.0


def test_agreement_is_measured_between_and_within_readers() -> None:
    rng = np.random.default_rng(0)
    scores = simulated_scores(rng, (-1, 0, 1))
    scores[1] = scores[0]  # the second reader copies the first
    repeats = np.clip(scores[:, :6] + rng.integers(-1, 2, scores[:, :6].shape), 1, 5)
    rows = {
        (r.kind, r.readers, r.criterion): r for r in analyse(results_of(scores, repeats)).agreement
    }
    between = rows["between readers", "reader 0, reader 1", "vessel_fidelity"]
    assert (between.num_pairs, between.exact_share, between.weighted_kappa) == (90, 1.0, 1.0)
    within = rows["within reader", "reader 1", "vessel_fidelity"]
    assert within.num_pairs == 18
    assert within.weighted_kappa is not None
    assert 0 < within.weighted_kappa < 1


def test_more_than_two_readers_get_one_row_for_all() -> None:
    rng = np.random.default_rng(0)
    scores = np.concatenate([simulated_scores(rng, (-1, 0, 1)) for _ in range(2)])[:3]
    rows = analyse(results_of(scores)).agreement
    kappas = [
        row.weighted_kappa
        for row in rows
        if row.kind == "between readers" and row.criterion == "vessel_fidelity"
    ]
    (all_of_them,) = [
        r for r in rows if r.kind == "all readers" and r.criterion == "vessel_fidelity"
    ]
    assert len(kappas) == 3
    assert all_of_them.weighted_kappa == pytest.approx(np.mean(np.array(kappas, dtype=float)))


def test_a_repeated_case_counts_once() -> None:
    scores = simulated_scores(np.random.default_rng(0), (-1, 0, 1))
    alone = analyse(results_of(scores))
    with_repeats = analyse(results_of(scores, 6 - scores[:, :10]))
    assert alone.summary == with_repeats.summary
    assert alone.comparisons == with_repeats.comparisons


def test_an_empty_study_gives_empty_tables() -> None:
    analysis = analyse(Results("t", METHODS, (), ("A", "B"), ("A",), (), (), ()))
    assert (len(analysis.summary), len(analysis.comparisons), len(analysis.ranking)) == (0, 0, 0)
    assert analysis.friedman_p is None
