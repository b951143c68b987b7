"""One zip of a sweep's answers in the form of GLUE's site: which runs answer, and what stands where none does."""

import dataclasses
import pathlib
import re
import zipfile

import numpy as np
import pytest

from posattn_jax.data.text import glue
from posattn_jax.run import evaluate as run_evaluate
from posattn_jax.sweeps import glue_bundle
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json

SITE = {
    "AX": 1104,
    "CoLA": 1063,
    "MNLI-m": 9796,
    "MNLI-mm": 9847,
    "MRPC": 1725,
    "QNLI": 5463,
    "QQP": 390_965,
    "RTE": 3000,
    "SST-2": 1821,
    "STS-B": 1379,
    "WNLI": 146,
}
SCORES = {
    "rte_composite/1": {"score": 0.5},
    "rte_composite/2": {"score": 0.7},
    "rte_composite/3": {"score": 0.6},
    "rte_fixed/1": {"score": 0.9},  # of another convolution
    "mnli_composite/1": {"score": 0.4, "score_mismatched": 0.8},
    "mnli_composite/2": {"score": 0.5, "score_mismatched": 0.7},
    "stsb_composite/1": {"score": -0.1},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Runs whose answers have their seeds in them, and one that is not finished."""
    for run, scores in SCORES.items():
        write_json(tmp_path / run / "config.json", {"data": {"name": run.split("_")[0]}})
        write_json(tmp_path / run / "summary.json", {"best": scores})
    write_json(tmp_path / "rte_composite" / "4" / "config.json", {})

    def evaluate(config, workdir):
        task = glue.TASKS[config.data.name]
        groups = np.repeat(np.arange(len(task.num_asked)), task.num_asked)
        told = np.arange(len(groups)) % len(task.labels) if task.labels else np.linspace(-1, 6, len(groups))
        paths = glue.write_answers(config.data.name, told, groups, workdir / "answers")
        for path in paths:
            path.write_text(path.read_text().replace("index", f"index of {workdir.name}"))

    monkeypatch.setattr(run_evaluate, "evaluate", evaluate)
    return tmp_path


def read(path: pathlib.Path) -> dict[str, list[str]]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode().splitlines() for name in archive.namelist()}


def test_the_best_in_development_answers(folder, capsys):
    """Of each file alone: MNLI-m and MNLI-mm by scores of their own, AX with MNLI-m."""
    out = folder / "composite.zip"
    glue_bundle.bundle(folder, "composite", out)
    found = read(out)
    assert {name.removesuffix(".tsv"): len(lines) - 1 for name, lines in found.items()} == SITE
    headers = {name: lines[0].split("\t") for name, lines in found.items()}
    seeds = {name: re.sub(r"\D", "", first) for name, (first, second) in headers.items() if second == "prediction"}
    answered = {"RTE.tsv": "2", "MNLI-m.tsv": "2", "MNLI-mm.tsv": "1", "AX.tsv": "2", "STS-B.tsv": "1"}
    assert seeds == dict.fromkeys(found, "") | answered
    for lines in found.values():
        assert [line.split("\t")[0] for line in lines[1:]] == [str(i) for i in range(len(lines) - 1)]
    answers = {name: {line.split("\t")[1] for line in lines[1:]} for name, lines in found.items()}
    assert answers["AX.tsv"] == answers["MNLI-m.tsv"] == {"entailment", "neutral", "contradiction"}
    assert answers["RTE.tsv"] == {"entailment", "not_entailment"}
    assert {min(map(float, answers["STS-B.tsv"])), max(map(float, answers["STS-B.tsv"]))} == {0.0, 5.0}
    assert answers["QNLI.tsv"] == {"entailment"} and answers["WNLI.tsv"] == answers["QQP.tsv"] == {"0"}
    told = capsys.readouterr().out
    assert f"{folder}/rte_composite/2, 0.7000" in told
    filled = next(line for line in told.splitlines() if line.startswith("not answered, and filled up: "))
    assert set(re.findall(r"[\w-]+\.tsv", filled)) == set(found) - set(answered)
    assert "QQP.tsv (390,965 times 0)" in filled and "QNLI.tsv (5,463 times entailment)" in filled


def test_a_test_set_that_is_not_there_is_filled_up(folder, monkeypatch, capsys):
    """Without the diagnostic file MNLI's answers are two."""
    evaluate = run_evaluate.evaluate

    def without_diagnostic(config, workdir):
        evaluate(config, workdir)
        (workdir / "answers" / "AX.tsv").unlink(missing_ok=True)

    monkeypatch.setattr(run_evaluate, "evaluate", without_diagnostic)
    glue_bundle.bundle(folder, "composite", folder / "x.zip")
    assert "AX.tsv (1,104 times entailment)" in capsys.readouterr().out
    assert read(folder / "x.zip")["AX.tsv"][1:] == [f"{i}\tentailment" for i in range(1104)]


def test_what_the_site_would_refuse_is_refused(folder, monkeypatch, capsys):
    short = dataclasses.replace(glue.TASKS["rte"], num_asked=(21,))
    evaluate = run_evaluate.evaluate

    def evaluate_less(config, workdir):
        with monkeypatch.context() as patch:
            patch.setitem(glue.TASKS, "rte", short)
            evaluate(config, workdir)

    monkeypatch.setattr(run_evaluate, "evaluate", evaluate_less)
    with pytest.raises(InputError, match=r"rte_composite/2: 21 .*RTE.tsv, .*3,000"):
        glue_bundle.bundle(folder, "composite", folder / "x.zip")
    assert command_line.run(glue_bundle.main, ["glue_bundle", str(folder), "dynamic"]) == 2
    assert "no finished run of dynamic" in capsys.readouterr().err
    assert not list(folder.glob("*.zip"))
