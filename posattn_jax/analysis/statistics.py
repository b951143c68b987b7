"""Statistics of a few runs per treatment, with the distributions of scipy.

Where possible, everything is computed from n, mean and standard deviation, so that printed tables can be checked.
"""

import bisect
import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy  # loads scipy.stats only when it is needed, which saves most commands a second or two

from posattn_jax.analysis.plan import Alternative

LEVEL = 0.05
# scipy's own advice: below it the Jarque-Bera statistic is far from chi-squared.
LEAST_FOR_NORMALITY = 2000
# Values that differ by less than this, relative to the largest, count as equal.
ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True)
class Sample:
    """What the tests need of a treatment: n, mean, and standard deviation (n - 1)."""

    n: int
    mean: float
    std: float


@dataclasses.dataclass(frozen=True)
class Interval:
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The comparison of two treatments, or of a weighted sum of the means of several.

    Attributes:
      effect: mean of the treatment - mean of the control, or the weighted sum.
      t, df: Welch's statistic and its degrees of freedom.
      p_two_sided, p_stated: the p-values of the two-sided test, and of the test that the hypothesis states.
      interval_two_sided, interval_stated: the 95% intervals of the effect that belong to these tests: the border is
        outside exactly if p < .05. If the hypothesis has a direction, the stated one is one-sided, to infinity.
      effect_size: Cohen's d, the effect in pooled standard deviations: s^2 = sum (n_i - 1) s_i^2 / sum (n_i - 1).
      power: the probability that a two-sided test at `LEVEL` with these n tells an effect of this size from the border.
      runs_needed: the runs of each treatment at which that power is 80%.
    """

    effect: float
    t: float
    df: float
    p_two_sided: float
    p_stated: float
    interval_two_sided: Interval
    interval_stated: Interval
    effect_size: float
    power: float
    runs_needed: float


def sample(values: Sequence[float]) -> Sample:
    """n, mean and standard deviation, which is NaN for too few values, and 0 if values differ only by rounding."""
    if not values:
        return Sample(0, math.nan, math.nan)
    std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    flat = len(values) > 1 and np.ptp(values) <= ROUNDING * np.abs(values).max()
    return Sample(len(values), float(np.mean(values)), 0.0 if flat else std)


def mean_interval(of: Sample) -> Interval:
    """The 95% interval of a mean, mean +- t(n - 1) std / sqrt(n); NaN for n = 1."""
    if of.n < 2:
        return Interval(math.nan, math.nan)
    reach = float(scipy.stats.t.ppf(1 - LEVEL / 2, of.n - 1)) * of.std / math.sqrt(of.n)
    return Interval(of.mean - reach, of.mean + reach)


def compare(
    samples: Sequence[Sample], alternative: Alternative, border: float = 0.0, weights: Sequence[float] = (1.0, -1.0)
) -> Comparison:
    """Welch's test, which does not assume equal variances, with effect size and power.

      t = (sum w_i m_i - border) / sqrt(sum w_i^2 s_i^2 / n_i)

    with the degrees of freedom of Welch and Satterthwaite. Let r be the square root, and q the quantiles of t's
    distribution. The two-sided 95% interval is effect -+ q(.975) r. That of "greater" is from effect - q(.95) r to
    infinity, that of "less" from minus infinity to effect + q(.95) r. Results are NaN if they are undefined: if a
    treatment has fewer than two runs, or if no treatment has any variation.

    Args:
      samples: the treatment and its control; or as many as there are weights.
      alternative: the direction that the hypothesis states.
      border: the difference at the border of the hypothesis.
      weights: w, the weight of the mean of each sample.
    """
    effect = sum(weight * each.mean for weight, each in zip(weights, samples, strict=True))
    variances = [(w * each.std) ** 2 / each.n for w, each in zip(weights, samples, strict=True) if each.n > 1]
    if len(variances) < len(samples) or sum(variances) == 0:
        nan = math.nan
        return Comparison(effect, nan, nan, nan, nan, Interval(nan, nan), Interval(nan, nan), nan, nan, nan)
    df = sum(variances) ** 2 / sum(v**2 / (s.n - 1) for v, s in zip(variances, samples, strict=True))
    error = math.sqrt(sum(variances))
    t = (effect - border) / error
    tails = {"greater": float(scipy.stats.t.sf(t, df)), "less": float(scipy.stats.t.cdf(t, df))}
    p_two_sided = 2 * min(tails.values())
    reach, reach_one_sided = (float(scipy.stats.t.ppf(1 - tail, df)) * error for tail in (LEVEL / 2, LEVEL))
    intervals = {
        "greater": Interval(effect - reach_one_sided, math.inf),
        "less": Interval(-math.inf, effect + reach_one_sided),
        "two-sided": Interval(effect - reach, effect + reach),
    }
    pooled = math.sqrt(sum((s.n - 1) * s.std**2 for s in samples) / sum(s.n - 1 for s in samples))
    from_border = (effect - border) / pooled
    return Comparison(
        effect=effect,
        t=t,
        df=df,
        p_two_sided=p_two_sided,
        p_stated=tails.get(alternative, p_two_sided),
        interval_two_sided=intervals["two-sided"],
        interval_stated=intervals[alternative],
        effect_size=effect / pooled,
        power=power(from_border, *(each.n for each in samples), weights=weights),
        runs_needed=runs_needed(from_border, weights),
    )


def power(size: float, *runs: int, weights: Sequence[float] = (1.0, -1.0)) -> float:
    """The probability that a two-sided t-test at `LEVEL` finds an effect of d pooled standard deviations.

    P(|T| > t_crit), where T is noncentral: df = sum (n_i - 1), nc = d / sqrt(sum w_i^2 / n_i). NaN if df is 0. It is
    that of Student's test. Welch's, which has fewer degrees of freedom, finds a little less: .37 instead of .46 for
    n = 3 and d = 2.
    """
    df = sum(runs) - len(runs)
    if df < 1 or math.isnan(size):
        return math.nan
    critical = float(scipy.stats.t.ppf(1 - LEVEL / 2, df))
    noncentrality = abs(size) / math.sqrt(sum(w**2 / n for w, n in zip(weights, runs, strict=True)))
    found = scipy.stats.nct.sf(critical, df, noncentrality) + scipy.stats.nct.cdf(-critical, df, noncentrality)
    # For large noncentralities, scipy's tail may be NaN, and the power is 1.
    return 1.0 if math.isnan(found) and noncentrality > critical else float(found)


def runs_needed(
    size: float, weights: Sequence[float] = (1.0, -1.0), wanted: float = 0.8, limit: int = 1_000_000
) -> float:
    """The runs of each treatment at which `power` reaches `wanted`; infinite if they exceed the limit."""

    def enough(n: int) -> bool:
        return power(size, *[n] * len(weights), weights=weights) >= wanted

    if math.isnan(size):
        return math.nan
    high = 2
    while high <= limit and not enough(high):
        high *= 2
    return math.inf if high > limit else float(bisect.bisect_left(range(high), True, high // 2 + 1, key=enough))


def paired(treatment: Sequence[float], control: Sequence[float], alternative: Alternative) -> tuple[float, float]:
    """(two-sided, as stated) p-values of the paired t-test; NaN for a single pair, or if all differences are equal."""
    if len(treatment) < 2 or np.ptp(np.subtract(treatment, control)) <= ROUNDING * np.abs([treatment, control]).max():
        return math.nan, math.nan
    sides: tuple[Alternative, Alternative] = ("two-sided", alternative)
    p = [float(scipy.stats.ttest_rel(treatment, control, alternative=side).pvalue) for side in sides]
    return p[0], p[1]


def jarque_bera(values: Sequence[float]) -> float:
    """The p-value of the Jarque-Bera test of normality; NaN if it is undefined.

    Its distribution is valid for large samples only: see `LEAST_FOR_NORMALITY`.
    """
    if not sample(values).std > 0:
        return math.nan
    return float(scipy.stats.jarque_bera(values).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for m hypotheses (Holm 1979): p_(i) -> max over j <= i of min(1, (m - j + 1) p_(j)).

    m includes hypotheses that could not be tested. Their p is NaN, and stays NaN.
    """
    corrected = [math.nan] * len(p_values)
    order = sorted((i for i, p in enumerate(p_values) if not math.isnan(p)), key=lambda i: p_values[i])
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected
