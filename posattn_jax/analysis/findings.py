"""What a sweep found: figures of every treatment, and of every hypothesis a verdict that its numbers bear out."""

import dataclasses
import math

import numpy as np

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
      holm_p: `comparison.p_stated`, corrected for all hypotheses that the sweep has stated.
      holm_p_two_sided: `comparison.p_two_sided`, likewise.
      pairs: seeds that all of its treatments have.
      paired_p, paired_p_stated: of the paired test over these.
      verdict: in words.
    """

    hypothesis: Hypothesis
    comparison: Comparison
    holm_p: float
    holm_p_two_sided: float
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
    comparisons = [statistics.compare([samples[name] for name in h.names], h.alternative) for h in hypotheses]
    corrected = statistics.holm([comparison.p_stated for comparison in comparisons], runs.stated)
    corrected_two_sided = statistics.holm([comparison.p_two_sided for comparison in comparisons], runs.stated)
    made = []
    for hypothesis, comparison, *holm in zip(hypotheses, comparisons, corrected, corrected_two_sided, strict=True):
        by_seed = [{run.seed: run.response for run in runs.runs[name]} for name in hypothesis.names]
        seeds = [seed for seed in by_seed[0] if all(seed in others for others in by_seed)]
        first, second, *others = (np.array([of_one[seed] for seed in seeds]) for of_one in by_seed)
        sides = (first - second, others[0] - others[1]) if others else (first, second)
        paired = statistics.paired(*(side.tolist() for side in sides), hypothesis.alternative)
        said = verdict(hypothesis, comparison, *holm, samples)
        made.append(Finding(hypothesis, comparison, *holm, len(seeds), *paired, said))
    return made


def verdict(
    hypothesis: Hypothesis, c: Comparison, holm_p: float, holm_p_two_sided: float, samples: dict[str, Sample]
) -> str:
    """What the numbers allow to be said, and how sure it is. Corrected p-values decide."""
    *firsts, last = (str(samples[name].n) for name in hypothesis.names)
    runs = f"n = {', '.join(firsts)} and {last}"
    if math.isnan(c.p_stated):
        return f"Cannot be tested ({runs}): a test needs two runs of each, and some variation between them."
    direction = "higher" if c.effect > 0 else "lower" if c.effect < 0 else "apart"
    measured = (
        f"The {'mean' if hypothesis.than is None else 'difference of the means'} is {abs(c.effect):.4f} {direction} "
        f"(95% interval of the difference {c.interval.low:+.4f} to {c.interval.high:+.4f}; {runs})."
    )
    if holm_p < LEVEL:
        return f"Supported. {measured} Corrected p = {number(holm_p)}."
    stated_sign = {"greater": 1, "less": -1, "two-sided": 0}[hypothesis.alternative]
    if c.effect * stated_sign < 0 and holm_p_two_sided < LEVEL:
        return f"Contradicted. {measured} That is the opposite of the claim, corrected p = {number(holm_p_two_sided)}."
    if c.p_stated < LEVEL:
        return (
            f"Not shown. {measured} p = {number(c.p_stated)} alone, but {number(holm_p)} corrected for all hypotheses: "
            "a difference to look for again, with new seeds."
        )
    needed = "more than a million" if math.isinf(c.runs_needed) else f"{c.runs_needed:.0f}"
    return (
        f"Not shown. {measured} Corrected p = {number(holm_p)}. That does not show equality: a true difference as "
        f"large as the measured one would be found by {c.power:.0%} of single tests like this, and by 80% with "
        f"{needed} runs of each (two-sided, uncorrected)."
    )


def number(p: float) -> str:
    """A p-value."""
    if math.isnan(p):
        return "-"
    return f"{p:.4f}" if p >= 0.0001 else "< .0001"
