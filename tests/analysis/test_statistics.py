"""Statistics against scipy on the runs themselves, published examples, and the span paper's own tables."""

import dataclasses
import math
from typing import get_args

import numpy as np
import pytest
import scipy  # its `stats` takes a second to import, when a test first asks
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.lib import common
from posattn_jax.analysis import report, statistics
from posattn_jax.analysis.plan import Alternative, Hypothesis, Plan, Treatment
from posattn_jax.analysis.statistics import LEVEL, Sample, compare, holm, power, runs_needed, sample
from posattn_jax.system.errors import InputError

# Student's sleep data (Student 1908), the example of R's t.test.
SLEEP = ([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0], [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])

# Tables 5, 6 and 7 of Alfons 2022: control, treatment (mean, std), the printed p, and SPEC's power and runs.
BASELINE, SIREN_1D, GAUSSIAN_1D, SPAN_1D = (0.7493, 0.01065), (0.7269, 0.02311), (0.7094, 0.02158), (0.7168, 0.01776)
SIREN_2D, GAUSSIAN_2D, SPAN_2D = (0.7991, 0.008688), (0.8026, 0.01579), (0.8095, 0.003782)
PRINTED = [
    (BASELINE, SIREN_1D, 0.0995, 0.41, 12),
    (SIREN_1D, GAUSSIAN_1D, 0.2511, 0.19, 27),
    (SIREN_2D, GAUSSIAN_2D, 0.6823, 0.07, 210),
    (GAUSSIAN_1D, SPAN_1D, 0.5697, 0.08, 113),
    (GAUSSIAN_2D, SPAN_2D, 0.3882, 0.13, 45),
]


@pytest.mark.parametrize("control, treatment, p, power_at_5, runs", PRINTED)
def test_the_papers_tables(control, treatment, p, power_at_5, runs):
    """Its p-values within .004; its power (50.25% for every comparison) was not computed from pooled deviations."""
    result = compare([Sample(5, *treatment), Sample(5, *control)], "greater")
    assert result.p_two_sided == pytest.approx(p, abs=0.004)
    assert result.power == pytest.approx(power_at_5, abs=0.006)
    assert result.runs_needed == runs


def test_the_paper_sweep_states_its_tests_and_its_largest_effect():
    """Two dimensions over one, of SIREN .7269 to .7991, which it does not test: p = .0012 from its tables."""
    plan = common.span_paper_sweep()

    def figures(name):
        paper = plan.treatment(name).paper
        return paper.mean, paper.std

    *tested, last = plan.hypotheses
    assert [(figures(h.control), figures(h.treatment), h.paper_p) for h in tested] == [row[:3] for row in PRINTED]
    assert (last.treatment, last.control, last.alternative, last.paper_p) == ("siren_2d", "siren_1d", "greater", None)
    effect = compare([Sample(5, *figures(name)) for name in (last.treatment, last.control)], "two-sided")
    assert (effect.effect, effect.p_two_sided) == (pytest.approx(0.0722), pytest.approx(0.0012, abs=5e-5))
    assert "| siren_2d - siren_1d | +0.0722 | - | .0012 |" in report.paper_power(plan)


def test_the_papers_power_follows_from_an_effect_size_of_root_two():
    """|m1 - m2| / sd(m1, m2) is sqrt(2) whatever the means are."""
    assert power(math.sqrt(2), 5, 5) == pytest.approx(0.5025, abs=5e-4)
    assert power(math.sqrt(2), 9, 9) == pytest.approx(0.804, abs=5e-4)


def test_student_sleep():
    """R: t.test(extra ~ group): t = -1.8608, df = 17.776, p = .07939, -3.3654832 to .2054832; paired p = .002833."""
    result = compare([sample(SLEEP[0]), sample(SLEEP[1])], "less")
    assert (result.t, result.df) == (pytest.approx(-1.8608, abs=5e-5), pytest.approx(17.776, abs=5e-4))
    assert result.p_two_sided == pytest.approx(0.07939, abs=5e-6)
    interval = result.interval_two_sided
    assert (interval.low, interval.high) == pytest.approx((-3.3654832, 0.2054832), abs=5e-7)
    both, less = statistics.paired(*SLEEP, "less")
    assert (both, less) == (pytest.approx(0.002833, abs=5e-7), pytest.approx(0.002833 / 2, abs=5e-7))


def test_power_as_in_r():
    """R: power.t.test(n = 20, delta = 1): .8689528; (delta = .5, power = .8): n = 63.77; (delta = 1): n = 16.71."""
    assert power(1.0, 20, 20) == pytest.approx(0.8689528, abs=1e-5)
    assert [runs_needed(0.5), runs_needed(-1.0)] == [64, 17]


@pytest.mark.parametrize("alternative", get_args(Alternative))
@pytest.mark.parametrize("n1, n2", [(2, 2), (2, 7), (5, 3), (40, 11)])
def test_welch_against_scipy(n1, n2, alternative):
    rng = np.random.default_rng([n1, n2])
    a, b = rng.normal(1.0, 2.0, n1), rng.normal(0.5, 0.3, n2)
    result = compare([sample(a.tolist()), sample(b.tolist())], alternative)
    two_sided = scipy.stats.ttest_ind(a, b, equal_var=False)
    stated = scipy.stats.ttest_ind(a, b, equal_var=False, alternative=alternative)
    assert result.effect == pytest.approx(a.mean() - b.mean())
    assert (result.t, result.df) == pytest.approx((two_sided.statistic, two_sided.df))
    assert (result.p_two_sided, result.p_stated) == pytest.approx((two_sided.pvalue, stated.pvalue))
    for interval, test in ((result.interval_two_sided, two_sided), (result.interval_stated, stated)):
        assert dataclasses.astuple(interval) == pytest.approx(tuple(test.confidence_interval()))


@pytest.mark.parametrize("alternative, border", [("less", 0.6), ("greater", -0.6), ("less", 0.0)])
def test_a_border_is_a_shift_of_the_treatment(alternative, border):
    """Not worse by a margin: Welch's test of a - border against b; the interval stays that of a - b."""
    rng = np.random.default_rng(3)
    a, b = rng.normal(1.0, 1.0, 6), rng.normal(0.8, 0.5, 4)
    result = compare([sample(a.tolist()), sample(b.tolist())], alternative, border)
    expected = scipy.stats.ttest_ind(a - border, b, equal_var=False, alternative=alternative)
    plain = scipy.stats.ttest_ind(a, b, equal_var=False, alternative=alternative)
    assert (result.t, result.p_stated) == pytest.approx((expected.statistic, expected.pvalue))
    assert result.effect == pytest.approx(a.mean() - b.mean())
    assert dataclasses.astuple(result.interval_stated) == pytest.approx(tuple(plain.confidence_interval()))
    reached = result.interval_stated.high if alternative == "less" else result.interval_stated.low
    assert (reached < border if alternative == "less" else reached > border) == (result.p_stated < LEVEL)
    moved = compare([sample((a - border).tolist()), sample(b.tolist())], alternative)
    assert (result.power, result.runs_needed) == pytest.approx((moved.power, moved.runs_needed))


@pytest.mark.parametrize(
    "more, names, weights",
    [({"also": (("b", "c"),)}, ("a", "c", "b"), (0.5, -1.0, 0.5)), ({"than": ("b", "c")}, ("a", "b"), (1.0, -1.0))],
)
def test_a_control_of_two_pairs_is_one_sample(more, names, weights):
    """Taken for two samples, it had 8 % false alarms at a level of 5 % in `also`, and 1.6 % in `than` (n = 5)."""
    hypothesis = Hypothesis("claim", "a", "c", "greater", **more)
    assert (hypothesis.names, hypothesis.weights) == (names, weights)


def test_a_treatment_is_not_compared_with_itself():
    with pytest.raises(InputError, match="compares a with itself"):
        Plan("?", (Treatment("a", "a"),), (Hypothesis("claim", "a", "a"),))


RESPONSES = st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=6)


@settings(max_examples=100, deadline=None)
@given(RESPONSES, RESPONSES, st.sampled_from(get_args(Alternative)))
def test_an_interval_has_0_outside_exactly_where_its_test_rejects(a, b, alternative):
    result = compare([sample(a), sample(b)], alternative)
    pairs = ((result.interval_two_sided, result.p_two_sided), (result.interval_stated, result.p_stated))
    for interval, p in pairs:
        if math.isnan(p):
            assert math.isnan(interval.low) and math.isnan(interval.high)
        elif abs(p - LEVEL) > 1e-9:
            assert (interval.low > 0 or interval.high < 0) == (p < LEVEL)


@pytest.mark.parametrize("n1, n2, size", [(5, 5, 0.8), (3, 9, 1.5)])
def test_power_is_the_share_of_tests_that_find_the_effect(n1, n2, size):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size, 1, (20_000, n1)), rng.normal(0, 1, (20_000, n2))
    found = np.mean(scipy.stats.ttest_ind(a, b, axis=1).pvalue < 0.05)
    assert power(size, n1, n2) == pytest.approx(found, abs=0.01)


def test_power_grows_with_runs_and_effect_and_is_the_level_at_none():
    assert power(0.0, 5, 5) == pytest.approx(0.05)
    assert power(30.0, 5, 5) == 1 and power(200.0, 500, 500) == 1
    assert np.all(np.diff([power(0.7, n, n) for n in range(2, 40)]) > 0)
    needed = int(runs_needed(0.7))
    assert power(0.7, needed, needed) >= 0.8 > power(0.7, needed - 1, needed - 1)
    assert runs_needed(20.0) == 2 and runs_needed(0.0) == math.inf


def test_without_variation_or_with_one_run_nothing_is_claimed():
    flat = sample([0.5, 0.5, 0.5])
    for other in (flat, sample([0.4, 0.4]), sample([0.4]), sample([])):
        result = compare([flat, other], "greater")
        assert result.effect == pytest.approx(0.5 - other.mean, nan_ok=other.n == 0)
        assert all(map(math.isnan, (result.t, result.p_two_sided, result.p_stated, result.power, result.runs_needed)))
    assert math.isnan(compare([sample([0.4]), sample([0.1, 0.3])], "less").p_stated)
    assert all(map(math.isnan, statistics.paired([0.1], [0.2], "less")))
    assert math.isnan(statistics.jarque_bera([0.5, 0.5])) and math.isnan(sample([0.5]).std)
    assert math.isnan(statistics.mean_interval(sample([0.5])).low)
    # Variation in one of the two is enough.
    assert compare([flat, sample([0.1, 0.3])], "greater").p_stated < 0.15


@pytest.mark.parametrize("value", [0.7, 1 / 3, 353 / 360])
def test_rounding_is_no_variation(value):
    """Of [.7, .7, .7] the deviation is 1e-16 and not 0."""
    flat, other = [value] * 3, [value + 1 / 360] * 3
    assert np.std(flat, ddof=1) >= sample(flat).std == 0
    assert math.isnan(compare([sample(flat), sample(other)], "less").p_stated)
    assert math.isnan(statistics.jarque_bera(flat))
    pairs = [value, value + 5 / 360, value + 7 / 360]
    assert all(map(math.isnan, statistics.paired([x + 1 / 360 for x in pairs], pairs, "greater")))


def test_mean_interval_and_normality_against_scipy():
    values = np.random.default_rng(0).normal(size=7)
    interval = statistics.mean_interval(sample(values.tolist()))
    expected = scipy.stats.t.interval(0.95, 6, values.mean(), scipy.stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx(expected)
    assert statistics.jarque_bera(values.tolist()) == scipy.stats.jarque_bera(values).pvalue


def test_holm_as_in_r():
    """R: p.adjust(c(.01, .02, .03, .04, .05), "holm"): .05 .08 .09 .09 .09, with n = 6: .06 .10 .12 .12 .12."""
    assert holm([0.03, 0.01, 0.05, 0.02, 0.04]) == pytest.approx([0.09, 0.05, 0.09, 0.08, 0.09])
    corrected = holm([0.03, 0.01, math.nan, 0.05, 0.02, 0.04])  # one could not be tested
    assert corrected[:2] + corrected[3:] == pytest.approx([0.12, 0.06, 0.12, 0.10, 0.12])
    assert math.isnan(corrected[2])
    assert holm([0.7, 0.8]) == [1.0, 1.0] and holm([]) == []


@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
def test_a_difference_against_another_difference(alternative):
    """Where the controls do not vary it is Welch's test of the treatments, each less its control."""
    rng = np.random.default_rng(3)
    a, c = rng.normal(0.9, 0.01, 5), rng.normal(0.7, 0.02, 3)
    flat = [Sample(4, 0.85, 0.0), Sample(6, 0.68, 0.0)]
    samples = [sample(a.tolist()), flat[0], sample(c.tolist()), flat[1]]
    result = compare(samples, alternative, weights=(1.0, -1.0, -1.0, 1.0))
    expected = scipy.stats.ttest_ind(a - 0.85, c - 0.68, equal_var=False, alternative=alternative)
    assert result.effect == pytest.approx((a - 0.85).mean() - (c - 0.68).mean())
    assert [result.t, result.df, result.p_stated] == pytest.approx([expected.statistic, expected.df, expected.pvalue])
    assert dataclasses.astuple(result.interval_stated) == pytest.approx(tuple(expected.confidence_interval()))


def test_power_of_a_difference_of_differences():
    """By simulation, of equal variances: the t-test of the contrast of four means."""
    n, size, draws = 5, 1.5, 20_000
    groups = np.random.default_rng(4).normal(size=(4, draws, n)) + np.array([size, 0, 0, 0])[:, None, None]
    means, variances = groups.mean(-1), groups.var(-1, ddof=1)
    t = (means[0] - means[1] - means[2] + means[3]) / np.sqrt(variances.mean(0) * 4 / n)
    found = np.mean(np.abs(t) > scipy.stats.t.ppf(0.975, 4 * n - 4))
    assert power(size, n, n, n, n, weights=(1.0, -1.0, -1.0, 1.0)) == pytest.approx(found, abs=0.01)
    assert runs_needed(size, (1.0, -1.0, -1.0, 1.0)) > runs_needed(size)


def test_the_mean_of_several_differences():
    """Of six samples: the formula of Welch and Satterthwaite in full, and the power by simulation."""
    rng = np.random.default_rng(5)
    values = [rng.normal(mean, 0.02, n) for mean, n in ((0.8, 3), (0.78, 4), (0.5, 3), (0.51, 5), (0.9, 3), (0.86, 3))]
    weights = (1 / 3, -1 / 3) * 3
    result = compare([sample(each.tolist()) for each in values], "greater", 0.001, weights)
    effect = np.mean([values[i].mean() - values[i + 1].mean() for i in (0, 2, 4)])
    parts = np.array([each.var(ddof=1) / len(each) / 9 for each in values])
    df = parts.sum() ** 2 / sum(part**2 / (len(each) - 1) for part, each in zip(parts, values, strict=True))
    t = (effect - 0.001) / math.sqrt(parts.sum())
    assert [result.effect, result.t, result.df] == pytest.approx([effect, t, df])
    assert result.p_stated == pytest.approx(scipy.stats.t.sf(t, df))

    n, size, draws = 3, 1.2, 20_000
    groups = rng.normal(size=(6, draws, n)) + np.array([3 * size, 0, 0, 0, 0, 0])[:, None, None]
    mean = np.tensordot(weights, groups.mean(-1), 1)
    simulated = mean / np.sqrt(groups.var(-1, ddof=1).mean(0) * 6 / 9 / n)
    found = np.mean(np.abs(simulated) > scipy.stats.t.ppf(0.975, 6 * n - 6))
    assert power(size, *[n] * 6, weights=weights) == pytest.approx(found, abs=0.01)
    assert runs_needed(size, weights) < runs_needed(size)
