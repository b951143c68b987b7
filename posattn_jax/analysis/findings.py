"""The results of a sweep: figures of every treatment, and for every hypothesis a verdict that the numbers support."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from posattn_jax.analysis import statistics
from posattn_jax.analysis.markdown_text import interval_text, number, p_is, plain
from posattn_jax.analysis.plan import Hypothesis, Treatment
from posattn_jax.analysis.runs import Runs
from posattn_jax.analysis.statistics import LEVEL, Comparison, Interval, Sample

VERDICTS = SUPPORTED, CONTRADICTED, NOT_SHOWN, UNTESTED = "Supported", "Contradicted", "Not shown", "Cannot be tested"

# A verdict before all runs that the plan states are done. It may change with them, so it shows nothing yet.
SO_FAR = ", so far"

# The 95% interval of the standard deviation from two normal values, relative to their own: sqrt(1 / chi2(1)).
TWO_RUNS = "two runs hardly tell their deviation, whose 95% interval is .45 to 32 times what they show"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The results of one treatment: `max`, `sample` and the 95% `interval` of the mean of its runs' responses."""

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
      holm_p: `comparison.p_stated`, corrected for all hypotheses of the plan, including those that cannot be tested.
      holm_p_two_sided: `comparison.p_two_sided`, corrected in the same way.
      pairs: the number of seeds that all of its treatments have.
      paired_p, paired_p_stated: the p-values of the paired test over these seeds.
      verdict: one of `VERDICTS`; a reservation may follow after a comma.
      told: the figures behind the verdict, as a sentence that follows the claim and a colon.
    """

    hypothesis: Hypothesis
    comparison: Comparison
    holm_p: float
    holm_p_two_sided: float
    pairs: int
    paired_p: float
    paired_p_stated: float
    verdict: str
    told: str


def outcomes(runs: Runs) -> list[Outcome]:
    """The outcome of every treatment with a finished run, in the plan's order."""
    made = []
    for treatment in runs.treatments:
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
    """The finding for every hypothesis of the plan, in its order. If it cannot be tested, its figures are NaN."""
    hypotheses = runs.plan.hypotheses
    samples = {each.name: statistics.sample(runs.responses(each.name)) for each in runs.plan.treatments}
    comparisons = [
        statistics.compare([samples[name] for name in h.names], h.alternative, h.border, h.weights) for h in hypotheses
    ]
    corrected = statistics.holm([comparison.p_stated for comparison in comparisons])
    corrected_two_sided = statistics.holm([comparison.p_two_sided for comparison in comparisons])
    stated = {each.name: runs.plan.num_stated_of(each) for each in runs.plan.treatments}
    made = []
    both = zip(corrected, corrected_two_sided, strict=True)
    for hypothesis, comparison, holm in zip(hypotheses, comparisons, both, strict=True):
        by_seed = [{run.seed: run.response for run in runs.runs.get(name, [])} for name in hypothesis.names]
        seeds = [seed for seed in by_seed[0] if all(seed in others for others in by_seed)]
        sides = [np.full(len(seeds), -hypothesis.border), np.zeros(len(seeds))]
        for weight, of_one in zip(hypothesis.weights, by_seed, strict=True):
            sides[weight < 0] += abs(weight) * np.array([of_one[seed] for seed in seeds])
        paired = statistics.paired(sides[0].tolist(), sides[1].tolist(), hypothesis.alternative)
        said = verdict(hypothesis, comparison, *holm, samples, stated)
        made.append(Finding(hypothesis, comparison, *holm, len(seeds), *paired, *said))
    return made


def testable(runs: Runs, made: Sequence[Finding]) -> list[Finding]:
    """The findings of hypotheses whose treatments all have a finished run."""
    return [each for each in made if all(name in runs.runs for name in each.hypothesis.names)]


def told(runs: Runs, made: Sequence[Finding]) -> list[str]:
    """What a reader wants first: how many hypotheses are shown, and a line for each.

    Those of which no treatment, or not every one, has a finished run, share a line. If two treatments alone have runs,
    and no hypothesis is about both, their difference comes first.
    """
    lines, ran = [], testable(runs, made)
    if len(runs.treatments) == 2 and not any(len(each.hypothesis.names) == 2 for each in ran):
        lines.append(_difference(runs))
    if made:
        shown = sum(each.verdict.startswith(SUPPORTED) and SO_FAR not in each.verdict for each in made)
        lines.append(f"**{shown} of {len(made)} {'hypotheses' if len(made) > 1 else 'hypothesis'} shown.**")
    lines += [f"**{each.verdict}.** {plain(each.hypothesis.claim)}: {each.told}" for each in ran]
    if waiting := [plain(each.hypothesis.claim) for each in made if each not in ran]:
        lines.append(f"**{UNTESTED}**, because a treatment has no finished run: {'; '.join(waiting)}.")
    return lines


def _difference(runs: Runs) -> str:
    first, second = runs.treatments
    samples = [statistics.sample(runs.responses(each.name)) for each in (first, second)]
    c, shown = statistics.compare(samples, "two-sided"), f"n = {samples[0].n} and {samples[1].n}"
    if not math.isnan(c.p_stated):
        shown = f"95% interval {interval_text(c.interval_two_sided, '{:+z.4f}')}; {shown}"
    return (
        f"**{plain(first.label)} minus {plain(second.label)}:** {c.effect:+.4f} ({shown}), which no hypothesis states."
    )


def verdict(
    hypothesis: Hypothesis,
    c: Comparison,
    holm_p: float,
    holm_p_two_sided: float,
    samples: dict[str, Sample],
    stated: Mapping[str, int] | None = None,
) -> tuple[str, str]:
    """The conclusion that the numbers allow, in a few words and in a sentence: `Finding.verdict` and `Finding.told`.

    Corrected p-values decide. The interval belongs to the test that decides, one-sided or two-sided. `stated` has the
    numbers of runs that the plan states; with fewer the conclusion is only `SO_FAR`.
    """
    done = {name: samples[name].n for name in hypothesis.names}
    planned = {name: (stated or done)[name] for name in hypothesis.names}
    is_whole = all(done[name] >= planned[name] for name in done)
    runs = _counts(done) if is_whole else f"{_counts(done)}, of {_counts(planned).removeprefix('n = ')} stated"
    if math.isnan(c.p_stated):
        return UNTESTED, f"{runs}, and a test needs two runs of each, and some variation between them."
    shown = round(c.effect, 4)
    direction = "higher" if shown > 0 else "lower" if shown < 0 else "apart"
    stated_sign = {"greater": 1, "less": -1, "two-sided": 0}[hypothesis.alternative]
    contradicted = c.t * stated_sign < 0 and holm_p_two_sided < LEVEL
    one_sided = stated_sign != 0 and not contradicted
    interval = c.interval_stated if one_sided else c.interval_two_sided
    measured = (
        f"the {_what(hypothesis)} is {abs(shown):.4f} {direction} "
        f"({'one' if one_sided else 'two'}-sided 95% interval of the difference, uncorrected: "
        f"{interval_text(interval, '{:+z.4f}')}; {f'margin {hypothesis.margin:g}; ' * bool(hypothesis.margin)}{runs})."
    )
    few = min(samples[name].n for name in hypothesis.names) == 2
    mark, caution = (", from n = 2 only", f" Runs of new seeds may say otherwise: {TWO_RUNS}.") if few else ("", "")
    mark += "" if is_whole else SO_FAR
    if holm_p < LEVEL:
        return SUPPORTED + mark, f"{measured} Corrected {p_is(holm_p)}.{caution}"
    if contradicted:
        opposite = f"That is the opposite of the claim, two-sided corrected {p_is(holm_p_two_sided)}."
        return CONTRADICTED + mark, f"{measured} {opposite}{caution}"
    if c.p_stated < LEVEL:
        return NOT_SHOWN, (
            f"{measured} {p_is(c.p_stated)} alone, but {number(holm_p)} corrected for all hypotheses: "
            "a difference to look for again, with new seeds."
        )
    needed = "more than a million" if math.isinf(c.runs_needed) else f"{c.runs_needed:.0f}"
    found = "told from the margin" if hypothesis.margin else "found"
    return NOT_SHOWN, (
        f"{measured} Corrected {p_is(holm_p)}. That does not show equality: a true difference as "
        f"large as the measured one would be {found} by {c.power:.0%} of single tests like this, and by 80% with "
        f"{needed} runs of each (two-sided, uncorrected)."
    )


def _counts(numbers: Mapping[str, int]) -> str:
    """The numbers of runs, in words."""
    *firsts, last = map(str, numbers.values())
    same = len(firsts) > 1 and {*firsts} == {last}
    return f"n = {last} of each" if same else f"n = {', '.join(firsts)} and {last}"


def _what(hypothesis: Hypothesis) -> str:
    """What is higher or lower."""
    if hypothesis.also:
        return f"mean over {1 + len(hypothesis.also)} pairs"
    return "difference of the means" if hypothesis.than else "mean"
