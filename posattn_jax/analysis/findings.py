"""What a sweep found: figures of every treatment, and of every hypothesis a verdict that its numbers bear out."""

import dataclasses
import math

from posattn_jax.analysis import statistics
from posattn_jax.analysis.plan import Hypothesis, Treatment
from posattn_jax.analysis.run_folders import Runs
from posattn_jax.analysis.statistics import LEVEL, Comparison, Interval, Sample


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The runs of one treatment: `max`, `sample` and 95% `interval` of the mean of their responses."""

    treatment: Treatment
    responses: list[float]
    max: float
    sample: Sample
    interval: Interval
    normality_p: float
    hours: float
    parameters: int


@dataclasses.dataclass(frozen=True)
class Finding:
    """A hypothesis and its tests.

    Attributes:
      holm_p: `comparison.p_stated`, corrected for all hypotheses of the sweep.
      pairs: seeds that both treatments have.
      paired_p, paired_p_stated: of the paired test over these.
      verdict: in words.
    """

    hypothesis: Hypothesis
    comparison: Comparison
    holm_p: float
    pairs: int
    paired_p: float
    paired_p_stated: float
    verdict: str


def outcomes(runs: Runs) -> list[Outcome]:
    """Of every treatment, in the plan's order."""
    made = []
    for treatment in runs.plan.treatments:
        responses = runs.responses(treatment.name)
        of = statistics.sample(responses)
        of_one = runs.runs[treatment.name]
        made.append(
            Outcome(
                treatment,
                responses,
                max(responses),
                of,
                statistics.mean_interval(of),
                statistics.jarque_bera(responses),
                sum(run.summary["seconds"] for run in of_one) / 3600,
                of_one[0].summary["num_parameters"],
            )
        )
    return made


def findings(runs: Runs) -> list[Finding]:
    """Of every hypothesis, in the plan's order."""
    hypotheses = runs.plan.hypotheses
    samples = {name: statistics.sample(runs.responses(name)) for name in runs.runs}
    comparisons = [statistics.compare(samples[h.treatment], samples[h.control], h.alternative) for h in hypotheses]
    corrected = statistics.holm([comparison.p_stated for comparison in comparisons])
    made = []
    for hypothesis, comparison, holm_p in zip(hypotheses, comparisons, corrected, strict=True):
        by_seed = [
            {run.seed: run.response for run in runs.runs[name]} for name in (hypothesis.treatment, hypothesis.control)
        ]
        differences = [by_seed[0][seed] - by_seed[1][seed] for seed in by_seed[0] if seed in by_seed[1]]
        paired = statistics.paired(differences, hypothesis.alternative)
        said = verdict(hypothesis, comparison, holm_p, samples)
        made.append(Finding(hypothesis, comparison, holm_p, len(differences), *paired, said))
    return made


def verdict(hypothesis: Hypothesis, comparison: Comparison, holm_p: float, samples: dict[str, Sample]) -> str:
    """What the numbers allow to be said, and how sure it is."""
    n = [samples[name].n for name in (hypothesis.treatment, hypothesis.control)]
    runs = f"n = {n[0]} and {n[1]}"
    if math.isnan(comparison.p_stated):
        return f"Cannot be tested ({runs}): a test needs two runs of each, and some variation between them."
    c = comparison
    measured = (
        f"The mean is {abs(c.effect):.4f} {'higher' if c.effect > 0 else 'lower'} "
        f"(95% interval of the difference {c.interval.low:+.4f} to {c.interval.high:+.4f}; {runs})."
    )
    if holm_p < LEVEL:
        return f"Supported. {measured} Corrected p = {number(holm_p)}."
    stated_sign = {"greater": 1, "less": -1}.get(hypothesis.alternative)
    if stated_sign and c.effect * stated_sign < 0 and c.p_two_sided < LEVEL:
        return f"Contradicted. {measured} That is the opposite of the claim, two-sided p = {number(c.p_two_sided)}."
    if c.p_stated < LEVEL:
        reason = f"p = {number(c.p_stated)} alone, but {number(holm_p)} corrected for all hypotheses"
    else:
        reason = f"corrected p = {number(holm_p)}"
    needed = "more than a million" if math.isinf(c.runs_needed) else f"{c.runs_needed:.0f}"
    return (
        f"Not shown. {measured} {reason[0].upper()}{reason[1:]}. That does not show equality: were the difference as "
        f"large as measured, {c.power:.0%} of such sweeps would find it (two-sided); with {needed} runs of each, 80%."
    )


def number(p: float) -> str:
    """A p-value."""
    if math.isnan(p):
        return "-"
    return f"{p:.4f}" if p >= 0.0001 else "< .0001"
