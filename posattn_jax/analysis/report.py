"""`--mode=report`: writes the results of a sweep as one HTML page, which needs no other file, and as Markdown.

WORKDIR/report/
  runs.jsonl                       everything that the report needs of the run folders: see `runs_file.py`
  report.md                        text and tables
  index.html  figures/*.png *.svg  text, tables and pictures
  results.json                     all numbers with all digits

Commit the first two: from a folder with `runs.jsonl`, the other files can be made again.
"""

import base64
import collections
import dataclasses
import html
import math
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import markdown

from posattn_jax.analysis import tables
from posattn_jax.analysis.findings import VERDICTS, Finding, Outcome, findings, outcomes, testable, told
from posattn_jax.analysis.markdown_text import figure, interval_text, number, on_terminal, plain, table
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment
from posattn_jax.analysis.runs import Complete, Runs, runs_file
from posattn_jax.analysis.runs.joining import join
from posattn_jax.analysis.runs.run_folders import read_runs
from posattn_jax.analysis.statistics import LEAST_FOR_NORMALITY, Sample, compare
from posattn_jax.analysis.sweep_figures import draw_sweep
from posattn_jax.system.files import write_json, write_text

NORMALITY = (
    "Jarque-Bera's p of every treatment is in `results.json`. It tells little of normality: with fewer than "
    f"{LEAST_FOR_NORMALITY:,} runs the test hardly ever rejects."
)
WHERE_PICTURES_ARE = (
    "Pictures: `python -m posattn_jax.main --mode=report --workdir=FOLDER`, FOLDER being that of this file, "
    "makes a page with them, and `results.json`."
)


def write(workdir: pathlib.Path, more: Sequence[pathlib.Path] = (), complete: Complete = dict) -> None:
    """Reads the runs, writes the report, and prints where it is.

    Args:
      workdir: the folder of the sweep, or of its `runs.jsonl`.
      more: folders with further runs of the sweep, which are joined.
      complete: see `read_runs`.

    Raises:
      InputError: the runs cannot be read or joined: see `read_runs` and `join`.
    """
    runs = read_runs(workdir, complete)
    for folder in more:
        runs = join(runs, read_runs(folder, complete))
    runs.check()
    found, tested = outcomes(runs), findings(runs)
    folder = workdir if (workdir / runs_file.NAME).exists() else workdir / "report"
    if folder != workdir or more:
        runs_file.write(folder / runs_file.NAME, runs)
    captions = draw_sweep(runs, folder / "figures")
    text = compose(runs, found, tested)
    write_text(folder / "report.md", text)
    pictures = [f"![{name.replace('_', ' ')}](figures/{name}.svg)\n\n*{each}*" for name, each in captions.items()]
    page = to_html(compose(runs, found, tested, pictures), folder, runs.plan.question)
    write_text(folder / "index.html", page)
    write_json(folder / "results.json", _results(runs, found, tested))
    for line in told(runs, tested):
        print(on_terminal(line))
    for line in runs.missing:
        print(f"left out: {line}")
    print(f"report {folder / 'index.html'}: {len(runs.all)} runs")


def compose(
    runs: Runs, found: Sequence[Outcome], tested: Sequence[Finding], pictures: Sequence[str] = (WHERE_PICTURES_ARE,)
) -> str:
    """The report as Markdown; by default with a note instead of pictures."""
    plan = runs.plan
    parts = [f"# {plain(plan.question)}"]
    if lines := told(runs, tested):
        parts.append("\n".join(f"- {line}" for line in lines))
    by_field = tables.by_field(runs)
    if by_field is not None:
        unit = "" if plan.of_translations else ", in hundredths"
        what = f"{runs.response_title}{unit}: means and standard errors of the mean"
        parts += [f"## By {plan.axis}", f"{what}.\n\n{by_field}"]
    by_translations = tables.by_translations(runs)
    if by_translations is not None:
        what = f"Of the {plan.part} part"
        if baselines := [*tables.baselines_of(runs).values()]:
            against = baselines[0] if len(baselines) == 1 else "the treatment named above it"
            what += f"; p: paired bootstrap of 1,000 samples against {against}, of one seed's translations"
            what += ", corrected for all tests of the metric (Holm)"
        parts += ["## Translations", f"{what}.\n\n{by_translations}"]
    parts += ["## Treatments", _outcome_table(runs, found), NORMALITY]
    if ran := testable(runs, tested):
        parts += ["## Hypotheses", _finding_table(ran), _explanation(runs)]
    parts += pictures
    by_cost = tables.by_cost(runs, found)
    if by_cost is not None:
        parts += ["## Costs", by_cost]
    by_span = tables.by_span(runs)
    if by_span is not None:
        parts += ["## What the spans saved", by_span]
    if any(outcome.treatment.paper for outcome in found) and tested:
        parts += ["## The paper's own tests, again", paper_power(plan)]
    parts += ["## How it was made", _how(runs)]
    if runs.missing:
        parts += ["## Left out", "\n".join(f"- {line}" for line in runs.missing)]
    return "\n\n".join(parts) + "\n"


def _outcome_table(runs: Runs, found: Sequence[Outcome]) -> str:
    header = ["treatment", "n", "max", "mean", "std", "95% interval of the mean", "parameters", "hours"]
    with_paper = any(outcome.treatment.paper for outcome in found)
    if with_paper:
        header += ["paper: max", "mean", "std (n)"]
    rows = []
    for outcome in found:
        s, interval = outcome.sample, outcome.interval
        row = [plain(outcome.treatment.label), str(s.n), f"{outcome.max:.4f}", f"{s.mean:.4f}", figure(s.std)]
        row += [interval_text(interval, "{:.4f}"), f"{outcome.parameters:,}", f"{outcome.hours:.2f}"]
        rows.append(row + (_printed(outcome.treatment) if with_paper else []))
    paper = f" The paper's columns: {runs.plan.source}." if with_paper and runs.plan.source else ""
    return f"{runs.response_title}; hours are those of all runs together.{paper}\n\n{table(header, rows)}"


def _printed(treatment: Treatment) -> list[str]:
    p = treatment.paper
    return ["-", "-", "-"] if p is None else [f"{p.max:.4f}", f"{p.mean:.4f}", f"{p.std:.4f} ({p.n})"]


def _finding_table(tested: Sequence[Finding]) -> str:
    header = ["hypothesis", "effect", "95% as stated", "d", "p as stated", "Holm", "paired p"]
    with_paper = any(finding.hypothesis.paper_p is not None for finding in tested)
    header += ["paper: p"] if with_paper else []
    rows = []
    for finding in tested:
        c = finding.comparison
        side = {"greater": ">", "less": "<", "two-sided": "≠"}[finding.hypothesis.alternative]
        names = _names(finding.hypothesis, side)
        if finding.hypothesis.margin:
            names += f" {finding.hypothesis.border:+g}"
        row = [names, figure(c.effect, "{:+z.4f}")]
        row += [interval_text(c.interval_stated, "{:+z.4f}"), figure(c.effect_size, "{:+z.2f}")]
        row += [number(c.p_stated), number(finding.holm_p), f"{number(finding.paired_p_stated)} ({finding.pairs})"]
        if with_paper:
            row.append("-" if finding.hypothesis.paper_p is None else number(finding.hypothesis.paper_p))
        rows.append(row)
    return table(header, rows)


def _names(hypothesis: Hypothesis, side: str) -> str:
    first, second = hypothesis.treatment, hypothesis.control
    if hypothesis.than:
        return f"{first} - {second} {side} {' - '.join(hypothesis.than)}"
    if hypothesis.also:
        firsts, seconds = (", ".join(names) for names in zip((first, second), *hypothesis.also, strict=True))
        return f"mean of {firsts} {side} mean of {seconds}"
    return f"{first} {side} {second}"


def paper_power(plan: Plan) -> str:
    """Tests the paper's printed means and standard deviations again. Returns a table, and the plan's note on it."""
    rows = []
    for hypothesis in plan.hypotheses:
        treatment, control = plan.treatment(hypothesis.treatment), plan.treatment(hypothesis.control)
        if treatment.paper is None or control.paper is None:
            continue
        c = compare([Sample(p.n, p.mean, p.std) for p in (treatment.paper, control.paper)], "two-sided")
        printed = "-" if hypothesis.paper_p is None else number(hypothesis.paper_p)
        row = [f"{treatment.name} - {control.name}", f"{c.effect:+z.4f}", printed, number(c.p_two_sided)]
        rows.append([*row, f"{c.effect_size:+.2f}", f"{c.power:.2f}", f"{c.runs_needed:.0f}"])
    header = ["difference", "effect", "p printed", "p from its table", "d", "power", "runs for 80%"]
    return "\n\n".join(part for part in (table(header, rows), plan.paper_note) if part)


def _explanation(runs: Runs) -> str:
    stated = len(runs.plan.hypotheses)
    several = f" for all {stated} hypotheses stated, tested or not" if stated > 1 else ""
    return (
        "Effect: mean of the first minus mean of the second. Tests: Welch's t; *as stated* is one-sided where the "
        "hypothesis has a direction, and so is its interval, of the effect and uncorrected; *Holm* is that p "
        f"corrected{several}, and decides; *paired* is the t-test of the differences by seed (number of pairs), as "
        "stated. d: effect in pooled standard deviations. Two-sided tests, t, degrees of freedom and power are in "
        "`results.json`."
    )


def _how(runs: Runs) -> str:
    summaries = [run.summary for run in runs.all]

    def all_of(values: Iterable[str]) -> str:
        return "; ".join(dict.fromkeys(values))

    versions = all_of(", ".join(f"{name} {v}" for name, v in summary["versions"].items()) for summary in summaries)
    hours = sum(summary["seconds"] for summary in summaries) / 3600
    grids = all_of(" x ".join(map(str, summary["grid_shape"])) for summary in summaries)
    files = _by_runs(runs, "data_sha256")
    lines = [
        f"- Commands: {'; '.join(f'`{command}`' for command in runs.commands) or 'not known'}.",
        f"- Hardware: {all_of(summary['device'] for summary in summaries)}; {hours:.2f} hours of runs in all.",
        f"- Data: {all_of(_data(run.config) for run in runs.all)}, grids {grids}, seeds "
        f"{', '.join(dict.fromkeys(str(run.seed) for run in runs.all))}"
        f"{f'; SHA-256 of the files {files}' if files else ''}.",
        f"- Training: {all_of(_duration(run.config['train']) for run in runs.all)}.",
        f"- Versions: {versions}; commit {_by_runs(runs, 'git_commit') or 'not known'}.",
    ]
    lines += ["", "Treatments, and the fields of the config that they set:", ""]
    for treatment in runs.treatments:
        fields = ", ".join(f"`{name}`" for name in treatment.fields)
        lines.append(f"- {plain(treatment.label)}: `--treatment={treatment.name}` ({fields or 'the config as it is'})")
    return "\n".join(lines)


def _by_runs(runs: Runs, field: str) -> str | None:
    """A field of the summaries; if it differs, with the treatments of each value and the numbers of their runs."""
    having: dict[str | None, collections.Counter[str]] = {}
    for run in runs.all:
        having.setdefault(run.summary.get(field), collections.Counter())[run.treatment] += 1
    if len(having) == 1:
        return next(iter(having))
    shown = {each: ", ".join(f"{name} {n}" for name, n in counts.items()) for each, counts in having.items()}
    return "; ".join(f"{each or 'not known'} ({counts})" for each, counts in shown.items())


def _data(config: dict[str, Any]) -> str:
    data = config["data"]
    if "source" in data:
        return f"translation, {data['source']} to {data['target']}"
    name = data.get("name") or _class_of(data)
    return f"{name} ({_class_of(data['scene'])})" if data.get("scene") else name


def _class_of(part: dict[str, Any]) -> str:
    """The name of the class of a part, without its module."""
    return part["kind"].rpartition(":")[2]


def _duration(train: dict[str, Any]) -> str:
    length = f"{train['total_steps']} updates" if train["total_steps"] else f"{train['total_epochs']:g} epochs"
    return f"{length} of {train['accumulation_steps']} x {train['batch_size']} examples an update"


def _results(runs: Runs, found: Sequence[Outcome], tested: Sequence[Finding]) -> dict[str, Any]:
    """All numbers of the report and of every run. Undefined and infinite ones are null."""
    return _finite(
        {
            "question": runs.plan.question,
            "response": runs.plan.response,
            "treatments": [dataclasses.asdict(outcome) for outcome in found],
            "hypotheses": [dataclasses.asdict(finding) for finding in tested],
            "runs": [
                {
                    "treatment": run.treatment,
                    "seed": run.seed,
                    "response": run.response,
                    "best_epoch": run.summary["best"]["epoch"],
                    "seconds": run.summary["seconds"],
                }
                for run in runs.all
            ],
            "left_out": runs.missing,
            "commands": runs.commands,
        }
    )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def to_html(text: str, folder: pathlib.Path, title: str) -> str:
    """The Markdown of a report as one HTML page that needs no other file: pictures are embedded, verdicts are badges.

    It has a light and a dark style, and fits on a phone.
    """

    def embed(match: re.Match) -> str:
        data = base64.b64encode((folder / match[1]).read_bytes()).decode()
        return f'src="data:image/svg+xml;base64,{data}"'

    def badge(match: re.Match) -> str:
        return f'<li><strong class="badge {match[2].lower().replace(" ", "-")}">{match[1]}</strong>'

    body = markdown.markdown(text, extensions=["tables", "toc"])
    body = re.sub(r'src="(figures/[^"]*)"', embed, body)
    body = re.sub(rf"<li><strong>(({'|'.join(VERDICTS)})[^<]*)\.</strong>", badge, body)
    body = re.sub(r"(<table>.*?</table>)", r'<div class="wide" tabindex="0">\1</div>', body, flags=re.DOTALL)
    body = re.sub(r"(<h2.*?)(?=<h2|\Z)", r"<section>\n\1</section>\n", body, flags=re.DOTALL)
    style = pathlib.Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return PAGE.format(title=html.escape(title), style=style, body=body)
