"""Another implementation of the same statistics: statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvverify.stats.equivalence import equivalence_mean
from kvverify.stats.holm import holm
from kvverify.stats.mcnemar import mcnemar_exact
from kvverify.stats.paired import paired_mean
from kvverify.stats.rates import wilson

pytest.importorskip("statsmodels")
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint
from statsmodels.stats.weightstats import ttost_paired

counts = st.integers(0, 200)
values = st.integers(-8, 8).map(lambda eighths: eighths / 8)


@given(counts, counts)
def test_mcnemar(b: int, c: int) -> None:
    theirs = mcnemar([[500, b], [c, 200]], exact=True).pvalue
    assert mcnemar_exact(b, c) == pytest.approx(min(1.0, theirs), rel=1e-9)


@settings(max_examples=10)  # it collects garbage in every call
@given(st.lists(st.floats(0, 1), min_size=1, max_size=15))
def test_holm(p_values: list[float]) -> None:
    _, theirs, _, _ = multipletests(p_values, method="holm")
    assert holm(p_values) == pytest.approx(theirs.tolist())


@given(counts, st.integers(1, 500), st.floats(0.5, 0.99))
def test_wilson(flips: int, rest: int, confidence: float) -> None:
    found = wilson(flips, flips + rest, confidence)
    theirs = proportion_confint(flips, flips + rest, alpha=1 - confidence, method="wilson")
    assert (found.low, found.high) == pytest.approx(theirs, abs=1e-12)


@given(st.lists(st.tuples(values, st.integers(0, 6)), min_size=8, max_size=60))
def test_clustered_error(items: list[tuple[float, int]]) -> None:
    differences, clusters = np.array([d for d, _ in items]), np.array([g for _, g in items])
    assume(len(set(clusters.tolist())) > 1)
    assume(np.ptp(differences) > 0)
    theirs = OLS(differences, np.ones(differences.size)).fit(
        cov_type="cluster", cov_kwds={"groups": clusters, "use_correction": True}
    )
    assert paired_mean(differences, 0.9, clusters=clusters).se == pytest.approx(
        float(theirs.bse[0]), rel=1e-6, abs=1e-9
    )


@given(st.lists(st.tuples(values, values), min_size=4, max_size=40), st.floats(0.05, 0.5))
def test_two_one_sided_t_tests(pairs: list[tuple[float, float]], margin: float) -> None:
    base, arm = np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])
    assume(np.std(arm - base) > 1e-9)
    theirs, worse, better = ttost_paired(arm, base, -margin, margin)
    found = equivalence_mean(paired_mean(arm - base, 0.9), margin)
    assert found is not None
    assert (found.p, found.p_worse, found.p_better) == pytest.approx((theirs, worse[1], better[1]), rel=1e-9)
