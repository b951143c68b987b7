"""From made run folders to a report whose words agree with its numbers."""

import dataclasses
import json
import re
import shutil

import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy import stats

from posattn_jax.analysis import report, sweep_figures
from posattn_jax.analysis.findings import TWO_RUNS, VERDICTS, findings, outcomes, told, verdict
from posattn_jax.analysis.markdown_text import number, p_is
from posattn_jax.analysis.plan import Hypothesis, Plan, Printed, Treatment, write_plan
from posattn_jax.analysis.runs import runs_file
from posattn_jax.analysis.runs.curves import Curve
from posattn_jax.analysis.runs.joining import join, joined_curve
from posattn_jax.analysis.runs.run_folders import read_runs
from posattn_jax.analysis.span_pictures import draw_profiles
from posattn_jax.analysis.statistics import compare, sample
from posattn_jax.config import parts
from posattn_jax.data.text.glue import Glue
from posattn_jax.data.text.sentence_files import SentenceFiles
from posattn_jax.data.text.translations import Translations
from posattn_jax.system.errors import InputError
from tests.analysis.made_sweep import write_run

SEEDS = (1, 2, 3, 4, 5)
A, B, C = [0.71, 0.73, 0.72, 0.70, 0.74], [0.81, 0.80, 0.83, 0.82, 0.79], [0.72, 0.71, 0.75, 0.70, 0.73]


def plan(**changes):
    fields = {
        "question": "Does a span help?",
        "treatments": (
            Treatment("none", "no span", {"model.span": False}, Printed(0.8, 0.7, 0.02)),
            Treatment("span", "a span", {"model.span": True}, Printed(0.9, 0.72, 0.03)),
            Treatment("half", "half a span", {"model.span": 0.5}),
        ),
        "hypotheses": (
            Hypothesis("a span helps", "span", "none", "greater", 0.25),
            Hypothesis("half a span helps", "half", "none", "greater"),
            Hypothesis("half a span is better than a whole one", "half", "span", "greater"),
        ),
        "seeds": SEEDS,
        "source": "A paper, its data",
        "paper_note": "Its power is wrong.",
    }
    return Plan(**(fields | changes))


@pytest.fixture
def folder(tmp_path):
    write_plan(tmp_path / "sweep.json", plan(), {"commands": ["python -m posattn_jax.main --mode=sweep"]})
    for seed, a, b, c in zip(SEEDS, A, B, C, strict=True):
        write_run(tmp_path / "none" / str(seed), a, span=False)
        write_run(tmp_path / "span" / str(seed), b, span=True, sigma=[0.2, 0.3])
        write_run(tmp_path / "half" / str(seed), c, span=0.5, grid=(24,), sigma=[0.1])
    return tmp_path


def test_the_report_of_finished_runs(folder, capsys):
    report.write(folder)
    assert "15 runs" in capsys.readouterr().out
    results = json.loads((folder / "report" / "results.json").read_text())
    text, page = ((folder / "report" / name).read_text() for name in ("report.md", "index.html"))

    treatments = {outcome["treatment"]["name"]: outcome for outcome in results["treatments"]}
    assert treatments["span"]["max"] == max(B) and treatments["span"]["sample"]["n"] == 5
    assert treatments["span"]["sample"]["std"] == pytest.approx(np.std(B, ddof=1))
    p = [stats.ttest_ind(x, y, equal_var=False, alternative="greater").pvalue for x, y in ((B, A), (C, A), (C, B))]
    found = results["hypotheses"]
    assert [finding["comparison"]["p_stated"] for finding in found] == pytest.approx(p)
    assert [finding["holm_p"] for finding in found] == pytest.approx([3 * p[0], min(1, 2 * p[1]), p[2]])
    assert found[1]["paired_p_stated"] == pytest.approx(stats.ttest_rel(C, A, alternative="greater").pvalue)
    assert [finding["verdict"] for finding in found] == ["Supported", "Not shown", "Contradicted"]
    assert len(results["runs"]) == 15

    for document in (text, page):
        for part in (
            "Does a span help?",
            "a span helps",
            "the test hardly ever rejects",
            "Its power is wrong.",
            "abc",
            "--mode=sweep",
        ):
            assert part in document
    badges = re.findall(r'<li><strong class="badge (.*?)">(.*?)</strong> (.*?):', page)
    claims = [hypothesis.claim for hypothesis in plan().hypotheses]
    words = [("supported", "Supported"), ("not-shown", "Not shown"), ("contradicted", "Contradicted")]
    assert badges == [(*word, claim) for word, claim in zip(words, claims, strict=True)]
    row = next(line for line in text.splitlines() if line.startswith("| a span |"))
    assert row.split(" | ")[1:5] == ["5", "0.8300", f"{np.mean(B):.4f}", f"{np.std(B, ddof=1):.4f}"]
    assert row.endswith("0.9000 | 0.7200 | 0.0300 (5) |")
    assert 'src="http' not in page and 'src="figures' not in page and page.count("data:image/svg+xml") == 6
    for name in ("box_plots", "learning_curves", "spans", "span_profiles", "span_sizes", "seconds"):
        for suffix in ("png", "svg"):
            assert (folder / "report" / "figures" / f"{name}.{suffix}").stat().st_size > 4000


def test_the_spans_of_treatments_are_lines_of_the_same_panel(folder):
    runs = read_runs(folder)
    rows, columns = runs.spans["span"].image.shape[:2]
    figure = draw_profiles(runs)
    plt.close(figure)  # which keeps what was drawn
    along_a_row, along_a_column = figure.axes
    x, y = np.arange(columns) - columns // 2, np.arange(rows) - rows // 2
    two = [np.exp(-0.5 * (at / (size - 1) / sigma) ** 2) for at, size, sigma in ((x, columns, 0.3), (y, rows, 0.2))]
    one = [np.exp(-0.5 * (at / (rows * columns - 1) / 0.1) ** 2) for at in (x, y * columns)]
    for axis, *expected in zip((along_a_row, along_a_column), two, one, strict=True):
        labels = [line.get_label() for line in axis.lines]
        assert labels == [runs.figure_label(name, 5) for name in ("span", "half")]
        for line, each in zip(axis.lines, expected, strict=True):
            drawn = line.get_ydata()
            np.testing.assert_allclose(drawn, np.where(drawn > 0, each, 0), rtol=1e-5)
            assert drawn[len(drawn) // 2] == 1


def test_a_report_is_made_again_of_its_runs_alone(folder, roughly_drawn, tmp_path_factory, capsys):
    """Of `runs.jsonl`, which is all that is committed with its words."""
    (folder / "half" / "2" / "summary.json").unlink()
    report.write(folder)
    made, again = folder / "report", tmp_path_factory.mktemp("again")
    shutil.copy(made / "runs.jsonl", again)
    report.write(again)
    assert "14 runs" in capsys.readouterr().out
    assert (made / "runs.jsonl").read_text() == (again / "runs.jsonl").read_text()
    for name in ("report.md", "results.json"):
        assert (made / name).read_text() == (again / name).read_text()
    assert "Pictures: `python -m posattn_jax.main --mode=report" in (made / "report.md").read_text()
    drawn = [sorted(path.name for path in (each / "figures").iterdir()) for each in (made, again)]
    assert drawn[0] == drawn[1] and (again / "index.html").read_text().count("data:image/svg+xml") == 6
    before, after = read_runs(folder), read_runs(again)
    for field in ("plan", "runs", "left_out", "commands"):
        assert getattr(before, field) == getattr(after, field)
    for name, curves in before.curves.items():
        for what, curve in curves.items():
            for field in ("num_runs", "at", "mean", "low", "high"):
                ours, theirs = getattr(curve, field), getattr(after.curves[name][what], field)
                assert ours is theirs is None or ours == pytest.approx(theirs, rel=1e-4)
    np.testing.assert_allclose(after.spans["span"].factors["block_0"], np.diag([0.2, 0.3]), rtol=1e-4)
    np.testing.assert_allclose(after.spans["span"].image, before.spans["span"].image, rtol=1e-4)


def test_long_curves_are_thinned(tmp_path):
    curve = Curve(1, np.arange(1001.0), np.arange(1001.0) / 3)
    thin = runs_file._thinned(curve)
    assert len(thin.at) <= 200 and thin.at[-1] == 1000 and np.array_equal(thin.mean, thin.at / 3)


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda lines: [*lines[:-1], lines[-1][:30]], "runs.jsonl: cannot be read (JSONDecodeError"),
        (lambda lines: [], "runs.jsonl: cannot be read (ValueError"),
        (lambda lines: lines[:1], "(ValueError: no run)"),
        (lambda lines: lines[1:], "(KeyError: 'plan')"),
        (lambda lines: [*lines, lines[-1]], " is there twice)"),
        (
            lambda lines: [*lines[:-1], lines[-1].replace('"config":{', '"config":{"model.width":9,')],
            "model.width is 64 and 9",
        ),
    ],
    ids=["cut", "empty", "no_run", "headless", "twice", "mixed"],
)
def test_runs_that_cannot_be_read_again_are_named(folder, undrawn, spoil, message):
    report.write(folder)
    path = folder / "report" / "runs.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(spoil(lines)))
    with pytest.raises(InputError, match=re.escape(message)):
        read_runs(path.parent)


@pytest.mark.slow
def test_runs_evaluated_once_have_no_curves(folder):
    for path in folder.glob("*/*/metrics.jsonl"):
        *_, last = rows = path.read_text().splitlines()
        step = json.loads(last)["step"]
        path.write_text("".join(f"{row}\n" for row in rows if json.loads(row)["step"] == step))
    report.write(folder)
    drawn = {path.stem for path in (folder / "report" / "figures").iterdir()}
    assert "box_plots" in drawn and not drawn & {"learning_curves", "seconds"}


def test_the_papers_tables_are_tested_again(folder, undrawn):
    report.write(folder)
    text = (folder / "report" / "report.md").read_text()
    again = text.split("## The paper's own tests, again")[1]
    expected = stats.ttest_ind_from_stats(0.72, 0.03, 5, 0.7, 0.02, 5, equal_var=False).pvalue
    (row,) = [line for line in again.splitlines() if line.startswith("| span - none")]
    assert row.split(" | ")[1:4] == ["+0.0200", ".2500", f"{expected:.4f}"[1:]]


@pytest.mark.parametrize(
    "treatment, control, alternative, holm_p, holm_p_two_sided, word",
    [
        ([0.9, 0.91, 0.92], [0.5, 0.51, 0.52], "greater", 0.001, 0.002, "Supported"),
        ([0.5, 0.51, 0.52], [0.9, 0.91, 0.92], "greater", 1.0, 0.002, "Contradicted"),
        ([0.5, 0.51, 0.52], [0.9, 0.91, 0.92], "greater", 1.0, 0.06, "Not shown"),  # of many hypotheses
        ([0.9, 0.91, 0.92], [0.5, 0.51, 0.52], "less", 1.0, 0.002, "Contradicted"),
        ([0.5, 0.51, 0.52], [0.9, 0.91, 0.92], "two-sided", 0.001, 0.001, "Supported"),
        ([0.9, 0.91, 0.92], [0.5, 0.51, 0.52], "greater", 0.06, 0.12, "Not shown"),
        ([0.52, 0.55, 0.58], [0.5, 0.51, 0.52], "greater", 0.2, 0.4, "Not shown"),
        ([0.5, 0.5], [0.5, 0.5], "greater", float("nan"), float("nan"), "Cannot be tested"),
        ([0.5], [0.5, 0.6], "greater", float("nan"), float("nan"), "Cannot be tested"),
        ([], [0.5, 0.6], "greater", float("nan"), float("nan"), "Cannot be tested"),
        ([0.9, 0.91], [0.5, 0.51, 0.52], "greater", 0.001, 0.002, "Supported, from n = 2 only"),
        ([0.5, 0.51, 0.52], [0.9, 0.91], "greater", 1.0, 0.002, "Contradicted, from n = 2 only"),
    ],
    ids=str,
)
def test_verdicts(treatment, control, alternative, holm_p, holm_p_two_sided, word):
    samples = {"a": sample(treatment), "b": sample(control)}
    comparison = compare([samples["a"], samples["b"]], alternative)
    given, said = verdict(Hypothesis("claim", "a", "b", alternative), comparison, holm_p, holm_p_two_sided, samples)
    assert given == word and word.split(",")[0] in VERDICTS
    assert f"n = {len(treatment)} and {len(control)}" in said
    assert ("hardly tell their deviation" in said) == word.endswith("n = 2 only")
    if word != "Cannot be tested":
        assert ("higher" if np.mean(treatment) > np.mean(control) else "lower") in said
        # Of the test that the verdict is of: the opposite of a claim is found by the two-sided one.
        side = "two-sided" if word.startswith("Contradicted") else alternative
        interval = stats.ttest_ind(treatment, control, equal_var=False, alternative=side).confidence_interval()
        ends = f"{interval.low:+.4f} to {interval.high:+.4f}".replace("inf", "∞")
        kind = "two-sided" if side == "two-sided" else "one-sided"
        assert f"{kind} 95% interval of the difference, uncorrected: {ends};" in said
    if word == "Not shown":  # how many more runs is said only where one test alone would not have found it
        assert ("would be found by" in said) == (comparison.p_stated >= 0.05)


@pytest.mark.parametrize(
    "treatment, holm_p, word",
    [
        ([0.51, 0.52, 0.53], 0.01, "Supported"),
        ([0.9, 0.91, 0.92], 1.0, "Contradicted"),
        ([0.5, 0.6, 0.7], 1.0, "Not shown"),
    ],
)
def test_a_verdict_of_no_more_than_a_margin_worse(treatment, holm_p, word):
    """A treatment that is a little higher bears out that it is not higher by the margin."""
    samples = {"a": sample(treatment), "b": sample([0.5, 0.51, 0.52])}
    hypothesis = Hypothesis("claim", "a", "b", "less", margin=0.1)
    compared = compare(list(samples.values()), "less", hypothesis.border)
    given, said = verdict(hypothesis, compared, holm_p, 0.001, samples)
    assert given == word and said.startswith("the mean is") and "higher" in said and "margin 0.1; n = 3 and 3)" in said
    assert ("would be told from the margin by 5% of" in said) == (word == "Not shown")


@pytest.mark.parametrize(
    "data, told",
    [
        (parts.part(SentenceFiles), "SentenceFiles"),
        (parts.part(Translations, source="en", target="de"), "translation, en to de"),
        (parts.part(Glue, name="rte"), "rte"),
    ],
)
def test_the_data_of_runs_are_told(folder, undrawn, data, told):
    """Also where a field of the data has a name that translations have, too."""
    for path in folder.glob("*/*/config.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"data": data.to_dict()}))
    report.write(folder)
    assert f"- Data: {told}, grids " in (folder / "report" / "report.md").read_text()


def test_a_verdict_before_all_stated_runs_shows_nothing(folder, undrawn):
    """Whatever seeds were chosen to run: the plan says for how many it was stated."""
    text = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps(text | {"plan": text["plan"] | {"num_stated": 7}}))
    whole = findings(read_runs(folder))
    (folder / "sweep.json").write_text(json.dumps(text))
    assert all(each.verdict in VERDICTS for each in findings(read_runs(folder)))
    supported = [each for each in whole if each.verdict.startswith("Supported")]
    assert supported and all(each.verdict.endswith(", so far") for each in supported)
    assert all(", of 7 and 7 stated" in each.told for each in supported)
    assert told(read_runs(folder), whole)[0] == f"**0 of {len(whole)} hypotheses shown.**"


def test_a_difference_that_rounds_to_0_has_no_sign():
    samples = {"a": sample([0.5, 0.6, 0.7]), "b": sample([0.5, 0.6, 0.70001])}
    compared = compare(list(samples.values()), "greater", 0.0)
    assert compared.effect < 0
    _, said = verdict(Hypothesis("claim", "a", "b", "greater"), compared, 1.0, 1.0, samples)
    assert said.startswith("the mean is 0.0000 apart (")


@pytest.mark.parametrize("response, is_lower", [("loss", True), ("perplexity", True), ("accuracy", False)])
def test_which_responses_are_better_where_they_are_lower(response, is_lower):
    assert plan(response=response).lower_is_better == is_lower


def change_summary(run, **fields):
    path = run / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_runs_of_several_commits_are_told_by_treatment(folder, undrawn):
    for seed in SEEDS[:2]:
        change_summary(folder / "span" / str(seed), git_commit="xyz")
    report.write(folder)
    text = (folder / "report" / "report.md").read_text()
    assert "commit abc (none 5, span 3, half 5); xyz (span 2)." in text


def test_runs_of_several_data_files_are_told_by_treatment(folder, undrawn):
    change_summary(folder / "span" / str(SEEDS[0]), data_sha256="xyz")
    report.write(folder)
    text = (folder / "report" / "report.md").read_text()
    assert "; SHA-256 of the files not known (none 5, span 4, half 5); xyz (span 1)." in text


def test_runs_of_a_treatment_have_one_tokenizer(folder, undrawn):
    """Runs that do not say which they have are of earlier versions. Another treatment may have another."""
    first, second, *_ = (folder / "span" / str(seed) for seed in SEEDS)
    change_summary(first, tokenizer_sha256=64 * "a")
    change_summary(folder / "none" / str(SEEDS[0]), tokenizer_sha256=64 * "b")
    report.write(folder)
    change_summary(second, tokenizer_sha256=64 * "b")
    (folder / "report" / "runs.jsonl").unlink()
    with pytest.raises(InputError, match=r"cannot be compared: their tokenizers differ, a{12}\.\.\. and b{12}"):
        report.write(folder)


def test_a_margin_has_a_direction():
    assert Hypothesis("claim", "a", "b", "greater", margin=0.1).border == -0.1
    with pytest.raises(InputError, match="margin=0.1 needs a direction"):
        Plan("?", (Treatment("a", "a"), Treatment("b", "b")), (Hypothesis("claim", "a", "b", margin=0.1),))


def test_p_values_have_no_more_digits_than_tell_something():
    values = (float("nan"), 1e-9, 0.0009, 0.001, 0.04321, 0.99, 0.9901, 1.0)
    told = ["-", "< .001", "< .001", ".0010", ".0432", ".9900", "> .99", "> .99"]
    assert [number(p) for p in values] == told and number(0.04321, digits=3) == ".043"
    assert [p_is(p) for p in values[1:6]] == ["p < .001", "p < .001", "p = .0010", "p = .0432", "p = .9900"]
    assert p_is(1.0) == "p > .99"


def test_what_two_runs_tell_of_their_deviation():
    """Of n normal values (n - 1) s^2 / sigma^2 is chi-squared with n - 1 degrees of freedom."""
    low, high = np.sqrt(1 / stats.chi2.ppf([0.975, 0.025], 1))
    assert f"95% interval is {low:.2f} to {high:.0f} times".replace("0.", ".") in TWO_RUNS


def test_what_is_missing_is_named_and_left_out(folder, undrawn, capsys):
    (folder / "half" / "2" / "summary.json").unlink()
    (folder / "span" / "3" / "config.json").unlink()
    write_run(folder / "span" / "77", 0.1, span=True)
    write_run(folder / "other" / "1", 0.1)
    runs = read_runs(folder)
    assert [run.seed for run in runs.runs["half"]] == [1, 3, 4, 5]
    assert runs.missing == [
        "span/3: not started",
        "other: is no treatment of this sweep",
        "half/2: is not finished",
        "span/77: is no seed of this sweep",
    ]
    assert [finding.pairs for finding in findings(runs)] == [4, 4, 3]
    report.write(folder)
    assert "left out: half/2: is not finished" in capsys.readouterr().out
    assert "- half/2: is not finished" in (folder / "report" / "report.md").read_text()


def test_a_treatment_without_a_finished_run(folder, roughly_drawn, capsys):
    for seed in SEEDS:
        (folder / "half" / str(seed) / "summary.json").unlink()
    runs = read_runs(folder)
    assert list(runs.runs) == ["none", "span"] and [each.treatment.name for each in outcomes(runs)] == ["none", "span"]
    assert "half: no run is finished" in runs.left_out
    report.write(folder)
    check_counted(folder)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "1 of 3 hypotheses shown." and printed[1].startswith("Supported. a span helps: the mean is")
    without = dataclasses.replace(runs, plan=dataclasses.replace(runs.plan, hypotheses=()))
    (line,) = told(without, findings(without))  # what the two differ by is told first, and not tested
    interval = stats.ttest_ind(A, B, equal_var=False).confidence_interval()
    shown = f"{np.mean(A) - np.mean(B):+.4f} (95% interval {interval.low:+.4f} to {interval.high:+.4f}; n = 5 and 5)"
    assert line == f"**no span minus a span:** {shown}, which no hypothesis states."


def check_counted(folder):
    """All three hypotheses are told and counted, of which the first alone could be tested."""
    results = json.loads((folder / "report" / "results.json").read_text())
    p = stats.ttest_ind(B, A, equal_var=False, alternative="greater").pvalue
    assert [finding["holm_p"] for finding in results["hypotheses"]] == [pytest.approx(3 * p), None, None]
    text = (folder / "report" / "report.md").read_text()
    waiting = "half a span helps; half a span is better than a whole one."
    assert f"no finished run: {waiting}" in text
    assert "for all 3 hypotheses" in text and "nan" not in text
    assert [line for line in text.splitlines() if line.startswith("| half >")] == []


@pytest.mark.slow
def test_a_treatment_that_was_not_chosen(folder):
    """Of a sweep's part the plan is whole, and what was not started is one line."""
    shutil.rmtree(folder / "half")
    assert read_runs(folder).missing == ["half: not started"]
    report.write(folder)
    check_counted(folder)


def test_one_run_each(tmp_path, roughly_drawn):
    """Figures and tables of a sweep that has only begun."""
    write_plan(tmp_path / "sweep.json", plan(), {})
    write_run(tmp_path / "none" / "1", 0.7, span=False)
    write_run(tmp_path / "span" / "1", 0.8, span=True)
    report.write(tmp_path)
    text = (tmp_path / "report" / "report.md").read_text()
    assert "Cannot be tested" in text and "nan" not in text
    assert json.loads((tmp_path / "report" / "results.json").read_text())["treatments"][0]["sample"]["std"] is None


def test_without_a_plan_every_pair_is_compared(folder, undrawn):
    (folder / "sweep.json").unlink()
    runs = read_runs(folder)
    assert {(h.treatment, h.control) for h in runs.plan.hypotheses} == {
        ("none", "half"),
        ("span", "half"),
        ("span", "none"),
    }
    report.write(folder)
    assert "≠" in (folder / "report" / "report.md").read_text()


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda folder: None, r"no runs there"),
        (lambda folder: write_run(folder / "none" / "1", 0.7, finished=False), "no run is finished .*none/1"),
        (lambda folder: write_run(folder / "none" / "1", 0.7, seed=8), "seed=8, its folder is named 1"),
        (
            lambda folder: [write_run(folder / "none" / str(seed), 0.7, width=seed) for seed in (1, 2)],
            "model.width is 1 and 2",
        ),
        (
            lambda folder: [write_run(folder / name / "1", 0.7, width=len(name)) for name in ("none", "planet")],
            None,
        ),
        (lambda folder: write_run(folder / "none" / "first", 0.7, seed=1), "expected a folder named by its seed"),
    ],
    ids=["empty", "unfinished", "seed", "mixed", "no_plan", "name"],
)
def test_what_cannot_be_reported_on_is_refused(tmp_path, spoil, message):
    spoil(tmp_path)
    if message is None:  # without a plan, treatments may differ in anything
        assert len(read_runs(tmp_path).runs) == 2
        return
    with pytest.raises(InputError, match=message):
        read_runs(tmp_path)


def test_treatments_that_differ_in_more_than_their_fields_are_refused(folder):
    config = json.loads((folder / "span" / "4" / "config.json").read_text())
    for seed in SEEDS:
        path = folder / "span" / str(seed) / "config.json"
        path.write_text(json.dumps(config | {"seed": seed, "train": config["train"] | {"total_epochs": 9.0}}))
    with pytest.raises(InputError, match="train.total_epochs is 3.0 and 9.0"):
        read_runs(folder)


def test_a_run_of_another_treatment_is_refused(folder):
    """A copied folder, or a run with a field of its treatment changed."""
    path = folder / "span" / "4" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"model": config["model"] | {"span": False}}))
    with pytest.raises(InputError, match="span/4: .*model.span=True"):
        read_runs(folder)


def test_evaluations_are_the_response_where_the_plan_says_so(tmp_path, undrawn):
    treatments = (
        Treatment("none", "no span", {"model.span": False}),
        Treatment("span", "a span", {"model.span": True}),
    )
    hypotheses = (Hypothesis("a span helps", "span", "none", "greater"),)
    evaluated = plan(treatments=treatments, hypotheses=hypotheses, seeds=(1, 2), evaluate={"data.pool": 1})
    write_plan(tmp_path / "sweep.json", evaluated, {})

    def write(name, seed, accuracy, pool=1, step=30):
        write_run(tmp_path / name / str(seed), 0.9, span=name == "span")
        evaluation = {"step": step, "config": {"data": {"pool": pool}}, "validation": {"accuracy": accuracy}}
        (tmp_path / name / str(seed) / "evaluation.json").write_text(json.dumps(evaluation))

    write("none", 1, 0.5)
    write("none", 2, 0.6, pool=2)  # of the grid it was trained on
    write("span", 1, 0.7)
    write("span", 2, 0.8, step=20)  # of an epoch that is no longer the best
    runs = read_runs(tmp_path)
    assert (runs.responses("none"), runs.responses("span")) == ([0.5], [0.7])
    assert {"none/2: was not evaluated under data.pool=1", "span/2: was not evaluated under data.pool=1"} <= set(
        runs.left_out
    )
    report.write(tmp_path)
    assert "Validation accuracy under data.pool = 1" in (tmp_path / "report" / "report.md").read_text()
    assert read_runs(tmp_path / "report").runs == runs.runs


def test_runs_without_curves_and_with_longer_ones(folder, roughly_drawn):
    """They are drawn as far as they have something to draw, and named."""
    (folder / "span" / "1" / "positions.npz").unlink()
    (folder / "span" / "2" / "metrics.jsonl").unlink()
    path = folder / "none" / "1" / "metrics.jsonl"
    early = {"split": "validation", "step": 5, "epoch": 0.5, "name": "accuracy", "value": 0.1}
    path.write_text(json.dumps(early) + "\n" + path.read_text())
    runs = read_runs(folder)
    assert runs.left_out == [
        "span/1: is not in every figure (it has no positions.npz)",
        "span/2: is not in every figure (it has no metrics.jsonl)",
    ]
    curve, other = (runs.curves[name]["epochs"] for name in ("none", "span"))
    assert curve.at.tolist() == [1, 2, 3]
    assert curve.mean.tolist() == pytest.approx([np.mean(A) - 0.2, np.mean(A) - 0.1, np.mean(A)])
    half = stats.t.ppf(0.975, 4) * np.std(A, ddof=1) / 5**0.5
    assert curve.high.tolist() == pytest.approx(curve.mean + half) and curve.low[0] == pytest.approx(
        curve.mean[0] - half
    )
    assert (curve.num_runs, other.num_runs, runs.spans["span"].num_runs) == (5, 4, 4)
    report.write(folder)


def test_what_looks_like_markdown_or_html_is_text(folder, roughly_drawn, capsys):
    labels = {"none": "a *span | x* <u>", "span": r"$\foo$ _b_", "half": "half"}
    strange = plan(
        question="Is sigma <b> & <.3?",
        hypotheses=(Hypothesis(r"span_2d & *half* \_ <u>", "span", "half", "greater"),),
        treatments=tuple(Treatment(t.name, labels[t.name], t.fields) for t in plan().treatments),
    )
    write_plan(folder / "sweep.json", strange, {})
    report.write(folder)
    page = (folder / "report" / "index.html").read_text()
    assert "<title>Is sigma &lt;b&gt; &amp; &lt;.3?</title>" in page
    assert "<td>a *span | x* &lt;u&gt;</td>" in page and "<em>b</em>" not in page
    assert r"Supported. span_2d & *half* \_ <u>: the mean" in capsys.readouterr().out


def test_a_legend_of_many_treatments_leaves_the_curves_their_room(tmp_path):
    for i in range(28):
        write_run(tmp_path / f"treatment_{i}" / "1", 0.5 + 0.01 * i, width=i)
    figure = sweep_figures._against_seconds(read_runs(tmp_path))
    assert figure is not None
    figure.canvas.draw()
    (axis,), (legend,) = figure.axes, figure.legends
    assert axis.get_window_extent().height > 3 * figure.dpi
    assert not axis.get_tightbbox().overlaps(legend.get_window_extent()) and len(legend.get_texts()) == 28
    plt.close(figure)


def test_a_damaged_plan_or_summary_is_named(folder):
    for damaged in (b'{"best": ', b'{"best": "\xff"}'):
        (folder / "none" / "1" / "summary.json").write_bytes(damaged)
        with pytest.raises(InputError, match=re.escape("none/1/summary.json: cannot be read")):
            read_runs(folder)
    (folder / "sweep.json").write_text('{"plan": {"question": "?"}}')
    with pytest.raises(InputError, match="sweep.json: cannot be read"):
        read_runs(folder)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"treatments": ()}, "at least one treatment"),
        ({"seeds": ()}, "at least one treatment and one seed"),
        ({"seeds": (1, 1)}, "seed 1 is there twice"),
        ({"treatments": (Treatment("a/b", "x"),), "hypotheses": ()}, 'treatment "a/b": expected letters'),
        ({"treatments": (Treatment("none", "x"),)}, 'no treatment "span"'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_plans_that_mean_nothing(changes, message):
    with pytest.raises(InputError, match=message):
        plan(**changes)


def test_a_hypothesis_without_direction(unchecked):
    with pytest.raises(InputError, match='alternative="bigger": .*greater'):
        plan(hypotheses=(Hypothesis("c", "span", "none", "bigger"),))


def test_plan_round_trip(tmp_path):
    from posattn_jax.analysis.plan import read_plan

    write_plan(tmp_path / "sweep.json", plan(), {"commands": ["x"]})
    assert read_plan(tmp_path / "sweep.json") == (plan(), {"commands": ["x"]})
    part = plan().select(["none", "span"], [3])
    assert [h.claim for h in part.hypotheses] == ["a span helps"] and part.seeds == (3,)
    with pytest.raises(InputError, match="--treatments=x.*none, span, half"):
        plan().select(["x"], None)


def test_a_difference_of_differences_after_the_last_epoch(tmp_path, roughly_drawn):
    """Two data sets, one with fewer seeds; judged by the test part after the last epoch; drawn against a field."""
    hypotheses = (
        Hypothesis("b is better than a", "b", "a", "greater"),
        Hypothesis("d is further above c than b above a", "d", "c", "greater", than=("b", "a")),
        Hypothesis("b and d are better than a and c on average", "b", "a", "greater", also=(("d", "c"),)),
    )
    treatments = (
        Treatment("a", "plain, 1", {"model.depth": 1}),
        Treatment("b", "fancy, 1", {"model.depth": 2}),
        Treatment("c", "plain, 3", {"model.depth": 3}, num_seeds=3),
        Treatment("d", "fancy, 3", {"model.depth": 4}, num_seeds=3),
    )
    changes = {"treatments": treatments, "hypotheses": hypotheses, "epoch": "last", "axis": "model.depth"}
    write_plan(tmp_path / "sweep.json", plan(**changes), {})
    responses = {"a": A, "b": [x + 0.01 for x in C], "c": A[:3], "d": [0.83, 0.81, 0.86]}
    for depth, (name, values) in enumerate(responses.items(), 1):
        for seed, value in zip(SEEDS, values, strict=False):
            write_run(tmp_path / name / str(seed), value, depth=depth)
            path = tmp_path / name / str(seed) / "summary.json"
            summary = json.loads(path.read_text())
            path.write_text(json.dumps(summary | {"best": summary["best"] | {"accuracy": 0.99}}))
            path = path.parent / "config.json"
            config = json.loads(path.read_text())
            path.write_text(json.dumps(config | {"data": config["data"] | {"validation": "test"}}))
    report.write(tmp_path)
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    assert results["left_out"] == []
    assert [outcome["responses"] for outcome in results["treatments"]] == list(responses.values())
    _, finding, average = results["hypotheses"]
    means = {name: np.mean(values) for name, values in responses.items()}
    assert finding["comparison"]["effect"] == pytest.approx(means["d"] - means["c"] - means["b"] + means["a"])
    first, second = (np.subtract(responses[x], responses[y])[:3] for x, y in (("d", "c"), ("b", "a")))
    assert finding["pairs"] == 3
    assert finding["paired_p_stated"] == pytest.approx(stats.ttest_rel(first, second, alternative="greater").pvalue)
    text = (tmp_path / "report" / "report.md").read_text()
    assert average["comparison"]["effect"] == pytest.approx((means["b"] - means["a"] + means["d"] - means["c"]) / 2)
    expected = stats.ttest_1samp((first + second) / 2, 0, alternative="greater").pvalue
    assert average["pairs"] == 3 and average["paired_p_stated"] == pytest.approx(expected)
    assert "the mean over 2 pairs is" in average["told"]
    assert "Last-epoch test accuracy" in text and "| d - c > b - a |" in text
    assert "| mean of b, d > mean of a, c |" in text
    assert "the difference of the means is" in finding["told"] and "n = 3, 3, 5 and 5" in finding["told"]
    assert {"by_field.png", "by_field.svg"} <= {path.name for path in (tmp_path / "report" / "figures").iterdir()}


def test_a_hypothesis_about_a_treatment_that_there_is_not():
    with pytest.raises(InputError, match='no treatment "x"'):
        plan(hypotheses=(Hypothesis("more", "span", "none", than=("half", "x")),))
    with pytest.raises(InputError, match='no treatment "y"'):
        plan(hypotheses=(Hypothesis("more", "span", "none", also=(("half", "y"),)),))
    with pytest.raises(InputError, match="and also are set: expected one"):
        pair = ("half", "none")
        plan(hypotheses=(Hypothesis("more", "span", "none", than=pair, also=(pair,)),))


def test_curves_of_many_points_are_joined_at_the_same_places():
    """A file keeps only some points, in five digits."""
    at = np.arange(1, 1001) * 1.00001
    curve = Curve(2, at, at / 1000, at / 1000 - 0.1, at / 1000 + 0.1)
    kept = Curve(
        2, *(np.array([float(f"{x:.5g}") for x in each[4::5]]) for each in (at, curve.mean, curve.low, curve.high))
    )
    for a, b in ((curve, kept), (kept, curve)):
        joined = joined_curve(a, b, is_response=True)
        assert joined.num_runs == 4 and len(joined.at) == 200
        np.testing.assert_allclose(joined.mean, joined.at / 1000, rtol=1e-4)


def test_runs_of_several_folders_are_one_sweep(folder, tmp_path_factory, undrawn, capsys):
    """A sweep in two parts, one of them kept as its file, gives the report of the whole."""
    report.write(folder)
    whole = (folder / "report" / "report.md").read_text()
    first, second = (tmp_path_factory.mktemp(name) for name in ("first", "second"))
    for part, seeds in ((first, (1, 2, 3)), (second, (4, 5))):
        commands = {"commands": ["python -m posattn_jax.main --mode=sweep"]}
        write_plan(part / "sweep.json", plan(seeds=seeds), commands)
        for name in ("none", "span", "half"):
            for seed in seeds:
                shutil.copytree(folder / name / str(seed), part / name / str(seed))
    for path in second.rglob("config.json"):  # of code that has a field more
        config = json.loads(path.read_text())
        path.write_text(json.dumps(config | {"train": config["train"] | {"later": False}}))
    report.write(first)
    kept = first / "report"
    report.write(kept, [second])
    assert (kept / "report.md").read_text() == whole

    joined, expected = read_runs(kept), read_runs(folder)
    for name, curves in expected.curves.items():
        assert joined.curves[name]["seconds"].num_runs == 3  # of the first alone
        for what, curve in curves.items():
            if what == "seconds":
                continue
            assert joined.curves[name][what].num_runs == 5
            for array in ("at", "mean", "low", "high"):
                given, wanted = (getattr(each, array) for each in (joined.curves[name][what], curve))
                np.testing.assert_allclose(given, wanted, rtol=2e-4, err_msg=f"{name} {what} {array}")
    np.testing.assert_allclose(joined.spans["span"].factors["block_0"], expected.spans["span"].factors["block_0"])
    with pytest.raises(InputError, match="none/4 is in two"):
        report.write(kept, [second])
    changed = plan(treatments=(Treatment("none", "no span", {"model.span": 2}), *plan().treatments[1:]))
    with pytest.raises(InputError, match="none has other fields"):
        join(expected, dataclasses.replace(expected, plan=changed))


def test_what_a_part_did_not_start_another_may_have(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "part")
    shutil.rmtree(folder / "half")
    for name in ("none", "span", "half/5"):
        shutil.rmtree(tmp_path / "part" / name)
    first, second = read_runs(folder), read_runs(tmp_path / "part")
    assert (first.missing, second.missing) == (["half: not started"], ["none, span, half/5: not started"])
    assert join(first, second).missing == ["half/5: not started"]
