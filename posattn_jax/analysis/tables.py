"""Tables that only some reports have: by a field, of translations, of spans, and of costs."""

from collections.abc import Iterable, Sequence

import numpy as np

from posattn_jax.analysis.findings import Outcome
from posattn_jax.analysis.markdown_text import interval_text, mean_and_error, number, plain, table
from posattn_jax.analysis.runs import Run, Runs
from posattn_jax.analysis.statistics import holm
from posattn_jax.system.files import value_at

# The metrics of translations, in the order of a table.
METRICS = {"bleu": "BLEU", "chrf": "chrF", "comet": "COMET", "bleurt": "BLEURT"}
EXPLANATION = (
    "Operations, CPU time (of all cores) and temporary memory are those of one update, forward and backward. "
    "Operations count every step of every loop of the formulas with all pairs, not what an implementation leaves out. "
    "Process memory and seconds are those of whole runs, compilation and evaluation included, on a machine that other "
    "work may have shared."
)


def lines_of(runs: Runs) -> dict[str, list[str]]:
    """Groups of treatments that differ only in the plan's axis: their label up to its last comma -> their names."""
    lines: dict[str, list[str]] = {}
    for name in runs.runs:
        lines.setdefault(runs.plan.treatment(name).label.rpartition(",")[0], []).append(name)
    return lines


def by_field(runs: Runs) -> str | None:
    """A table with a row per group of `lines_of`, and a column per value of the plan's axis; None if not names.

    Such values are, for example, the names of tasks. Cells are means with their standard errors. The last column is the
    mean of a row's cells, with the standard error over the means of each seed. A task with two validation sets, such as
    MNLI, has two columns. The last row needs no model: it always predicts the same.
    """
    axis, response = runs.plan.axis, runs.plan.response
    if axis is None or not all(isinstance(value_at(run.config, axis), str) for run in runs.all):
        return None
    scale = 1.0 if runs.plan.of_translations else 100.0
    columns: dict[tuple[object, str], str] = {}
    for run in runs.all:
        label = runs.plan.treatment(run.treatment).label.rpartition(",")[2].strip()
        columns[value_at(run.config, axis), ""] = label
        if f"{response}_mismatched" in run.figures:
            columns[value_at(run.config, axis), "_mismatched"] = f"{label}-mm"
    rows = []
    for label, names in lines_of(runs).items():
        by_value = {value_at(runs.runs[name][0].config, axis): runs.runs[name] for name in names}
        found = [
            {run.seed: run.figures[response + suffix] for run in by_value.get(value, [])} for value, suffix in columns
        ]
        seeds = set.intersection(*(set(each) for each in found))
        means = [float(np.mean([each[seed] for each in found])) for seed in sorted(seeds)]
        rows.append([label, *(_mean(each.values(), scale) for each in found), _mean(means, scale)])
    nothing = {value_at(run.config, axis): run.summary.get("always_the_same", {}) for run in runs.all}
    if all(response + suffix in nothing[value] for value, suffix in columns):
        found = [nothing[value][response + suffix] for value, suffix in columns]
        always = [_mean([value], scale) for value in (*found, np.mean(found))]
        rows.append(["Always the most frequent label, or the mean", *always])
    return table(["", *columns.values(), "mean"], rows)


def _mean(values: Iterable[float], scale: float) -> str:
    return mean_and_error([scale * value for value in values], "{:.1f}")


def by_translations(runs: Runs) -> str | None:
    """Scores, sizes and paired bootstrap tests as in Schmidt 2023; None unless the response is BLEU or chrF.

    Scores are means over seeds, with standard errors of the mean if there are several. COMET and BLEURT are shown for
    treatments whose runs all have them. p is that of a paired bootstrap test of the translations of one seed against
    those of a baseline with the same seed, corrected for all tests of the metric (Holm). It is about these two runs
    only, not about other seeds. It is left out if the translations do not exist, or were tokenised differently.
    """
    if not runs.plan.of_translations:
        return None
    baselines = baselines_of(runs)
    header, columns = ["", "n", "parameters"], []
    for metric, title in METRICS.items():
        if any(metric in run.figures for run in runs.all):
            header.append(title)
            columns.append({name: _score(of_one, metric) for name, of_one in runs.runs.items()})
        corrected = _corrected(runs, metric)
        for baseline in baselines if corrected else ():
            header.append("p" if len(baselines) == 1 else f"p: {baselines[baseline]}")
            columns.append({name: corrected.get((name, baseline), "") for name in runs.runs})
    rows = []
    for name, of_one in runs.runs.items():
        row = [runs.plan.treatment(name).label, str(len(of_one)), f"{of_one[0].summary['num_parameters']:,}"]
        hours = np.mean([run.summary["seconds"] for run in of_one]) / 3600
        rows.append([*row, *(column[name] for column in columns), f"{hours:.2f}"])
    keys = ("bleu_signature", "chrf_signature")
    of_metrics = [list(dict.fromkeys(run.figures[key] for run in runs.all if key in run.figures)) for key in keys]
    signatures = [f"`{each}`" for of_metric in of_metrics for each in of_metric]
    told = f"Signatures: {'; '.join(signatures)}." if signatures else "These runs have saved no signatures."
    if any(len(of_metric) > 1 for of_metric in of_metrics):
        told += " Scores with different signatures cannot be compared."
    return f"{table([*header, 'hours per run'], rows)}\n\n{told}"


def baselines_of(runs: Runs) -> dict[str, str]:
    """The treatments that translations were tested against, and their labels."""
    return {name: runs.plan.treatment(name).label for tests in runs.p.values() for name in tests}


def _score(of_one: list[Run], metric: str) -> str:
    """The mean of a metric over runs; empty if a run does not have it."""
    if not all(metric in run.figures for run in of_one):
        return ""
    return mean_and_error([run.figures[metric] for run in of_one], "{:.2f}")


def _corrected(runs: Runs, metric: str) -> dict[tuple[str, str], str]:
    """The p-value of every treatment and baseline, in both orders, after Holm's correction."""
    tests = {(a, b): p[metric] for a, others in runs.p.items() for b, p in others.items() if metric in p}
    corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
    return {pair: number(round(p, 3), digits=3) for (a, b), p in corrected.items() for pair in ((a, b), (b, a))}


def by_span(runs: Runs) -> str | None:
    """What learned spans saved, for treatments whose runs measured it at their end: see `run.span_saving`."""
    header = ["treatment", "n", "updates/s with the spans", "without a span", "times", "pairs inside", "computed"]
    lines = []
    for treatment in runs.treatments:
        of_all = [run.summary for run in runs.runs[treatment.name]]
        summaries = [summary for summary in of_all if "span_saving" in summary]
        if not summaries:
            continue
        rates = [[summary["span_saving"][name] for summary in summaries] for name in ("with_span", "without_span")]
        shares = [
            np.mean([np.mean(list(summary[name].values())) for summary in summaries])
            for name in ("pair_share", "score_share")
        ]
        line = [plain(treatment.label), str(len(summaries)), *(f"{np.mean(each):.3g}" for each in rates)]
        line += [mean_and_error(np.divide(rates[0], rates[1]).tolist(), "{:.2f}")]
        lines.append([*line, *(f"{100 * share:.1f} %" for share in shares)])
    if not lines:
        return None
    told = (
        "Updates a second of a run's last state, and of the same model without a span, by turns at the end of each run "
        "(medians; here their means over seeds); pairs of places inside the spans of the best epoch, and pairs whose "
        "scores were computed, of all."
    )
    return f"{table(header, lines)}\n\n{told}"


def by_cost(runs: Runs, found: Sequence[Outcome]) -> str | None:
    """The responses and costs of methods, the best first; None if no costs were measured; "-": not known."""
    if not runs.costs:
        return None
    header = ["method", "n", runs.plan.response, "95% interval", "parameters", "million operations", "CPU ms"]
    header += ["temporary MiB", "process MiB", "seconds a run"]
    sign = 1 if runs.plan.lower_is_better else -1
    lines = []
    for outcome in sorted(found, key=lambda outcome: sign * outcome.sample.mean):
        name, summaries = outcome.treatment.name, [run.summary for run in runs.runs[outcome.treatment.name]]
        line = [plain(outcome.treatment.label), str(outcome.sample.n), f"{outcome.sample.mean:.4f}"]
        line += [interval_text(outcome.interval, "{:.4f}"), f"{outcome.parameters:,}"]
        if cost := runs.costs.get(name):
            line += [f"{cost['operations'] / 1e6:,.0f}", f"{1e3 * cost['cpu_seconds']:.1f}"]
            line += [f"{cost['temp_bytes'] / 2**20:.1f}"]
        else:
            line += ["-", "-", "-"]
        peaks = [peak for summary in summaries if (peak := summary.get("peak_memory_bytes", {}).get("host"))]
        line += [f"{max(peaks) / 2**20:.0f}" if peaks else "-"]
        lines.append([*line, f"{np.mean([summary['seconds'] for summary in summaries]):.0f}"])
    title = f"{runs.response_title}: means and 95% intervals of the mean (t)."
    return f"{title}\n\n{table(header, lines)}\n\n{EXPLANATION}"
