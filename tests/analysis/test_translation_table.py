"""Reports on translations: scores and tests by mixer, and what a gate is worth."""

import dataclasses
import json

import pytest

from configs import nmt
from configs.lib import common_nmt
from posattn_jax.analysis import report, tables, translation_scores
from posattn_jax.analysis.plan import Plan, Treatment, write_plan
from posattn_jax.analysis.runs import run_folders
from posattn_jax.analysis.runs.run_folders import read_runs
from posattn_jax.system.files import write_json

REFERENCES = [f"der Hund {i} sieht die kleine Katze im Garten" for i in range(30)]


def garbled(share):
    """The references, of which every so many has other words at its end."""
    return [line if i % share else f"{line[:12]} nichts davon" for i, line in enumerate(REFERENCES)]


def write_run(workdir, model, hypotheses, seed, target="de", tokenize="13a"):
    folder = workdir / "translations" / "test"
    translation_scores.write_for_outside_metrics(folder, REFERENCES, hypotheses, REFERENCES)
    scores = translation_scores.corpus_scores(hypotheses, REFERENCES, tokenize)
    config = {
        "seed": seed,
        "task": {"kind": "Translation", "decoding": {"beam_size": 12}},
        "data": {"source": "en", "target": target, "fold_case": False},
        "model": model,
        "train": {"total_steps": 5, "total_epochs": 0.0, "accumulation_steps": 1, "batch_size": 9},
    }
    best = {"step": 5, "epoch": 1.0, "log_likelihood": -1.0, "loss": 1.0}
    summary = {"best": best, "final": best, "num_parameters": 12_345, "grid_shape": [32], "seconds": 7200.0}
    summary |= {"score_share": {}, "threshold": None, "device": "cpu", "versions": {"jax": "0"}, "git_commit": None}
    write_json(workdir / "config.json", config)
    write_json(workdir / "summary.json", summary)
    write_json(workdir / "evaluation.json", {"step": 5, "config": config, "validation": {"loss": 1.0}, "test": scores})
    return scores


def test_scores_tests_and_gates(tmp_path, roughly_drawn):
    pytest.importorskip("sacrebleu")
    runs = {
        "transformer": [garbled(9), garbled(10)],
        "rposnet": [garbled(9)],
        "rposnet_ungated": [garbled(2)],
    }
    treatments, scores = [], {}
    for name, translations in runs.items():
        model = nmt.get_config(f"multi30k,{name}").model.to_dict()
        fields = common_nmt.mixer_fields(name, 4, 0.0, 16, 128)
        treatments.append(Treatment(name, name.capitalize(), fields, num_seeds=len(translations)))
        for seed, hypotheses in enumerate(translations, start=1):
            scores[name, seed] = write_run(tmp_path / name / str(seed), model, hypotheses, seed)
    evaluate = {"task.decoding.beam_size": 12}
    plan = Plan("Which?", tuple(treatments), seeds=(1, 2), evaluate=evaluate, part="test", response="bleu")
    write_plan(tmp_path / "sweep.json", plan, {"commands": []})
    report.write(tmp_path)
    text = (tmp_path / "report" / "report.md").read_text()
    section = text.split("## Translations")[1].split("## ")[0]
    lines = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")]
    table = {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}
    first, second = scores["transformer", 1]["bleu"], scores["transformer", 2]["bleu"]
    assert table["Transformer"][:4] == [
        "2",
        "12,345",
        f"{(first + second) / 2:.2f} ± {abs(first - second) / 2:.2f}",
        "",
    ]
    assert table["Rposnet"][2:4] == [f"{first:.2f}", "> .99"], "the same translations"
    assert float(table["Rposnet_ungated"][3]) < 0.05
    assert "tok:13a" in text and "hours per run" in text and "2.00" in table["Transformer"][-1]
    assert (tmp_path / "report" / "figures" / "gating.svg").exists()
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    assert {(run["treatment"], run["seed"]): run["response"] for run in results["runs"]} == {
        which: found["bleu"] for which, found in scores.items()
    }


def make_sweep(tmp_path, baselines, treatments, **scored):
    """A sweep whose runs have these translations; a report's table of translations as {label: {column: cell}}."""
    made = []
    for name, hypotheses in treatments.items():
        fields = common_nmt.mixer_fields(name, 4, 0.0, 16, 128)
        made.append(Treatment(name, common_nmt.LABELS[name], fields, num_seeds=1))
        write_run(tmp_path / name / "1", nmt.get_config(f"multi30k,{name}").model.to_dict(), hypotheses, 1, **scored)
    evaluate = {"task.decoding.beam_size": 12}
    return Plan("Which?", tuple(made), seeds=(1,), evaluate=evaluate, part="test", response="bleu", baselines=baselines)


def test_scores_by_a_field_are_as_they_are(tmp_path):
    """A table by the names of a field does not multiply BLEU by 100, as it does other scores."""
    pytest.importorskip("sacrebleu")
    plan = make_sweep(tmp_path, (), {"transformer": garbled(9), "rposnet": garbled(2)})
    write_plan(tmp_path / "sweep.json", dataclasses.replace(plan, axis="data.target"), {"commands": []})
    rows = tables.by_field(read_runs(tmp_path)).splitlines()
    bleu = read_runs(tmp_path).runs["rposnet"][0].response
    assert 1 < bleu < 100 and f"{bleu:.1f}" in rows[-1]


def table_of(tmp_path, plan):
    write_plan(tmp_path / "sweep.json", plan, {"commands": []})
    report.write(tmp_path)
    text = (tmp_path / "report" / "report.md").read_text()
    section = text.split("## Translations")[1].split("## ")[0]
    header, _, *rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")
    ]
    return section, {row[0]: dict(zip(header, row, strict=True)) for row in rows}


def without_signatures(workdir):
    """As an evaluation of an earlier version."""
    path = workdir / "evaluation.json"
    evaluation = json.loads(path.read_text())
    evaluation["test"] = {name: evaluation["test"][name] for name in ("bleu", "chrf")}
    path.write_text(json.dumps(evaluation))


def test_scores_without_signatures(tmp_path, undrawn):
    """Of some runs, and of all."""
    pytest.importorskip("sacrebleu")
    plan = make_sweep(tmp_path, (), {"transformer": garbled(9), "rposnet": garbled(2)})
    without_signatures(tmp_path / "transformer" / "1")
    section, table = table_of(tmp_path, plan)
    assert section.count("tok:13a") == 1 and "cannot be compared" not in section
    p = table[common_nmt.LABELS["rposnet"]]["p"]
    assert float(p) < 0.05
    without_signatures(tmp_path / "rposnet" / "1")
    section, table = table_of(tmp_path, plan)
    assert "These runs have saved no signatures." in section and table[common_nmt.LABELS["rposnet"]]["p"] == p


@pytest.mark.parametrize("target, tokenize", [("zh_CN", "zh"), ("ja", "char"), ("de", "intl")])
def test_the_tests_tokenise_as_the_scores_did(tmp_path, undrawn, monkeypatch, target, tokenize):
    """Whatever a language would have here."""
    pytest.importorskip("sacrebleu")
    asked, test = [], translation_scores.paired_bootstrap
    spied = lambda *arguments, **options: asked.append(options["tokenize"]) or test(*arguments, **options)
    monkeypatch.setattr(translation_scores, "paired_bootstrap", spied)
    treatments = {"transformer": garbled(9), "rposnet": garbled(2)}
    section, _ = table_of(tmp_path, make_sweep(tmp_path, (), treatments, target=target, tokenize=tokenize))
    assert set(asked) == {tokenize} and f"tok:{tokenize}" in section


def test_scores_that_cannot_be_compared(tmp_path, undrawn, monkeypatch):
    """Other tokenisations, or one that is not installed: no test."""
    pytest.importorskip("sacrebleu")
    plan = make_sweep(tmp_path, (), {"transformer": garbled(9), "rposnet": garbled(2)})
    write_run(
        tmp_path / "rposnet" / "1", nmt.get_config("multi30k,rposnet").model.to_dict(), garbled(2), 1, "de", "char"
    )
    section, _ = table_of(tmp_path, plan)
    assert "tok:13a" in section and "tok:char" in section and "| p |" not in section
    assert "different signatures" in section
    monkeypatch.setattr(run_folders, "is_installed", lambda _: False)
    assert read_runs(tmp_path).p == {}


def test_two_baselines_and_scores_of_other_metrics(tmp_path, undrawn):
    pytest.importorskip("sacrebleu")
    treatments = {"transformer": garbled(9), "shaw": garbled(9), "rposnet": garbled(2), "fourier": garbled(3)}
    plan = make_sweep(tmp_path, ("transformer", "shaw"), treatments)
    for name in ("transformer", "rposnet"):
        (tmp_path / name / "1" / "translations" / "test" / "bleurt.txt").write_text("0.5\n" * len(REFERENCES))
    section, table = table_of(tmp_path, plan)
    assert "against the treatment named above it" in section and "Holm" in section
    transformer, shaw, rposnet = (table[common_nmt.LABELS[name]] for name in ("transformer", "shaw", "rposnet"))
    assert [transformer["BLEURT"], shaw["BLEURT"], rposnet["BLEURT"]] == ["50.00", "", "50.00"]
    assert "COMET" not in transformer
    ours, theirs = "p: Transformer", "p: Shaw et al. (2018)"
    assert transformer[ours] == shaw[theirs] == "" and transformer[theirs] == shaw[ours] == "> .99"
    tests = [
        translation_scores.p_of_folders(
            [tmp_path / each / "1" / "translations" / "test" for each in pair], "13a", False
        )["bleu"]
        for pair in (("transformer", "rposnet"), ("transformer", "fourier"))
    ]
    smallest = min(tests)  # of five tests, of which Shaw's repeat the Transformer's
    assert rposnet[ours] == rposnet[theirs] and float(rposnet[ours]) == round(min(1.0, 5 * smallest), 3)
