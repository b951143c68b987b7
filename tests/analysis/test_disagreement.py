"""Sentences on which BLEU and COMET disagree, with those of Schmidt 2023, Table 8."""

import json

import numpy as np
import pytest

from posattn_jax.analysis import disagreement
from posattn_jax.analysis.disagreement import rank_differences
from posattn_jax.analysis.translation_scores import sentence_bleu, write_for_outside_metrics
from posattn_jax.system import command_line

pytest.importorskip("sacrebleu")

# Source, reference, and the translation, BLEU and COMET of LinearNet and of GaussianNet, as printed.
TABLE = [
    (
        "Haigerloch: Focus on the Abendmahlskirche",
        "Haigerloch: Abendmahlskirche rückt in den Blickpunkt",
        ("Haigerloch: Fokus auf die Abendmahlskirche", 15.2, 72.3),
        ("Haigerloch: Focus on the Abendmahlskirche", 15.2, -15.0),
    ),
    (
        "Does he know about phone hacking?",
        "Weiß er über das Telefon-Hacking Bescheid?",
        ("Weiß er von Telefonhacking?", 15.8, 72.5),
        ("Kennt er über Telefon-Hacking?", 17.0, 8.8),
    ),
    (
        "Sayings come from the Bible",
        "Sprichwörter kommen aus der Bibel",
        ("Sprichwörter stammen aus der Bibel", 42.7, 108.0),
        ("Sayings kommen aus der Bibel", 66.9, 3.7),
    ),
    (
        "Finally, let's talk pumpkins.",
        "Aber kommen wir endlich zu den Kürbissen.",
        ("Abschließend möchte ich noch auf die Kürbisse eingehen.", 4.8, 41.0),
        ("Schließlich, lassen Sie uns reden Kürbisse.", 5.5, -60.3),
    ),
]
LINEAR, GAUSSIAN = 2, 3


def evaluated(workdir, system, as_json=True):
    """A run with the translations of a system, and with the scores of COMET."""
    folder = workdir / "translations" / "test"
    sources, references, translated = zip(*((row[0], row[1], row[system]) for row in TABLE), strict=True)
    write_for_outside_metrics(folder, sources, [each[0] for each in translated], references)
    signature = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1"
    (workdir / "evaluation.json").write_text(json.dumps({"test": {"bleu": 20.0, "bleu_signature": signature}}))
    scores = [each[2] / 100 for each in translated]
    if as_json:
        (folder / "comet.json").write_text(json.dumps({"hypothesis.txt": [{"COMET": score} for score in scores]}))
    else:
        (workdir / "scores.txt").write_text("".join(f"{score}\n" for score in scores))
    return workdir


def run(capsys, *arguments):
    code = command_line.run(disagreement.main, ["disagreement", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


@pytest.mark.parametrize("system", [LINEAR, GAUSSIAN])
def test_bleu_of_sentences_is_that_of_the_paper(system):
    found = sentence_bleu([row[system][0] for row in TABLE], [row[1] for row in TABLE])
    np.testing.assert_allclose(found, [row[system][1] for row in TABLE], atol=0.051)


def test_ranks_by_hand():
    """Ranks 1, 2.5, 2.5, 4 by BLEU and 4, 1, 2, 3 by COMET."""
    found = rank_differences(np.array([1.0, 5, 5, 9]), np.array([0.9, -1, 0.1, 0.2]))
    np.testing.assert_allclose(found, [1, -0.5, -0.5 / 3, -1 / 3])
    assert rank_differences(np.array([3.0]), np.array([1.0])).tolist() == [0]


def test_sentences_of_a_run(tmp_path, capsys):
    """GaussianNet's ranks are 2, 3, 4, 1 by BLEU and 2, 4, 3, 1 by COMET: sentences 2 and 3 differ by one place."""
    code, told, _ = run(capsys, evaluated(tmp_path / "gaussian", GAUSSIAN), "--number=2")
    assert code == 0 and told[0] == "4 sentences, ranked by BLEU and by COMET"
    heads = [line for line in told if line.startswith("sentence")]
    assert heads == [
        "sentence 2: COMET ranks it higher, by 33% of all sentences",
        "sentence 3: BLEU ranks it higher, by 33% of all sentences",
    ]
    at = told.index(heads[1])
    assert told[at + 1 : at + 4] == [
        "  source: Sayings come from the Bible",
        "  reference: Sprichwörter kommen aus der Bibel",
        f"  {tmp_path}/gaussian: Sayings kommen aus der Bibel  [BLEU 66.9, COMET 3.7]",
    ]


def test_sentences_of_two_runs_and_files_with_a_score_a_line(tmp_path, capsys):
    """As in the paper: BLEU prefers GaussianNet's sentence about the Bible most, COMET LinearNet's."""
    runs = [evaluated(tmp_path / name, system, False) for name, system in (("linear", LINEAR), ("gaussian", GAUSSIAN))]
    code, told, _ = run(capsys, *runs, f"--comet={runs[0]}/scores.txt,{runs[1]}/scores.txt", "--number=1")
    assert code == 0 and told[0].endswith("COMET of the first minus the second")
    assert told[2] == "sentence 3: COMET ranks it higher, by 100% of all sentences"
    assert told[5:] == [
        f"  {tmp_path}/linear: Sprichwörter stammen aus der Bibel  [BLEU 42.7, COMET 108.0]",
        f"  {tmp_path}/gaussian: Sayings kommen aus der Bibel  [BLEU 66.9, COMET 3.7]",
    ]


def test_what_is_not_there(tmp_path, capsys):
    code, _, err = run(capsys, tmp_path)
    assert code == 2 and "of the part test: run --mode=evaluate" in err
    workdir = evaluated(tmp_path / "run", LINEAR, False)
    code, _, err = run(capsys, workdir)
    assert code == 2 and "expected --comet=FILE" in err
    (workdir / "scores.txt").write_text("0.5\n")
    code, _, err = run(capsys, workdir, f"--comet={workdir}/scores.txt")
    assert code == 2 and "1 scores, expected a finite one for each of 4" in err
    code, _, err = run(capsys, workdir, "--comet=a,b")
    assert code == 2 and "1 runs and 2 files of --comet" in err
    code, _, err = run(capsys, workdir, f"--comet={workdir}/scores.txt", "--number=0")
    assert code == 2 and "--number=0: expected 1 or more" in err
    other = evaluated(tmp_path / "other", GAUSSIAN)
    (other / "translations" / "test" / "reference.txt").write_text("a\n" * 4)
    first = evaluated(tmp_path / "first", LINEAR)
    code, _, err = run(capsys, first, other)
    assert code == 2 and f"{other}: expected the sentences" in err


def test_runs_that_were_scored_in_other_ways(tmp_path, capsys):
    runs = [evaluated(tmp_path / name, system) for name, system in (("linear", LINEAR), ("gaussian", GAUSSIAN))]
    path = runs[1] / "evaluation.json"
    signed = path.read_text()
    path.write_text(signed.replace("case:mixed", "case:lc"))
    code, _, err = run(capsys, *runs)
    assert code == 2 and f"{runs[1]}: BLEU with {{'tokenize': '13a', 'lowercase': True}}" in err
    path.write_text(signed.replace("tok:13a", "tok:flores200"))
    code, _, err = run(capsys, *runs)
    assert code == 2 and "gaussian: BLEU's tokenisation is not installed" in err
