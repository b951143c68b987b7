"""The scores of an evaluation, without a model."""

import numpy as np
import pytest

from posattn_jax.analysis.translation_scores import corpus_scores
from posattn_jax.data.text.translations import Translations
from posattn_jax.use import translate

pytest.importorskip("sacrebleu")
REFERENCES = ["我今天去了学校。", "他喜欢在图书馆里看书。", "这座城市的春天非常美丽。"]
TRANSLATIONS = ["我今天去了学校里。", "他喜欢在图书馆看书。", "这个城市的春天非常美丽。"]
GREEK = ["Τους είδαμε όλους ΧΘΕΣ.", "Ο ΑΝΔΡΑΣ ΤΗΣ πόλης ήρθε μόνος.", "Δεν τους ξέρει κανείς εδώ."]


def evaluated(folder, monkeypatch, target, references, told, **fields):
    """The scores of a run whose translations of these references are `told`."""
    for language, lines in (("en", [f"Sentence {i}." for i in range(3)]), (target, references)):
        for part in ("val", "test"):
            (folder / f"{part}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    part = type("Part", (), {"numbers": np.arange(3), "select": lambda self, _: self, "__len__": lambda self: 3})()
    monkeypatch.setattr(translate, "draw_attention", lambda *_: None)
    data = Translations(dir=str(folder), source="en", target=target, **fields)
    translator = lambda lines, numbers: told
    translator.num_beyond = 0
    return translate.evaluate(translator, data, folder / "run", {"validation": part, "test": part})


@pytest.mark.parametrize("target", ["zh", "zh_CN", "zh-TW"])
def test_chinese(tmp_path, monkeypatch, unchecked, capsys, target):
    scores = evaluated(tmp_path, monkeypatch, target, REFERENCES, TRANSLATIONS)["test"]
    assert scores["bleu"] == corpus_scores(TRANSLATIONS, REFERENCES, "zh")["bleu"] > 79
    assert scores["bleu_signature"] in capsys.readouterr().out and "tok:zh" in scores["bleu_signature"]


def test_lower_case_stands_in_the_signature(tmp_path, monkeypatch, unchecked):
    """A Greek model that is perfect has 100."""
    told = [line.lower() for line in GREEK]
    scores = evaluated(tmp_path, monkeypatch, "el", GREEK, told, fold_case=True)["test"]
    assert "τους" in told[0] and scores["bleu"] == pytest.approx(100)
    assert "case:lc" in scores["bleu_signature"] and "case:lc" in scores["chrf_signature"]
