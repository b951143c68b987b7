"""Translation of five sets of sentences (Schmidt 2023); sweep(): what may mix tokens in the place of attention?

python -m posattn_jax.main --config=configs/nmt.py:multi30k,rposnet --workdir=runs/NAME --config.data.dir=MULTI30K
... --mode=evaluate, then --mode=translate --workdir=runs/NAME < input.txt > output.txt
python -m posattn_jax.main --config=configs/nmt.py:multi30k --mode=sweep --workdir=runs/multi30k --workers=2 \
    --config.data.dir=MULTI30K
python -m posattn_jax.main --config=configs/nmt.py:wmt14_en_de,rposnet,big --workdir=runs/NAME --config.data.dir=WMT14
A variant is a set, by default multi30k, and after it in any order: a mixer (transformer, shaw, relative, fourier,
gaussian, linear, glinear, lightconv, lightconv_plain, lightconv_gelu, lightconv_global, aposnet, rposnet; with the gate
or without: transformer_gated, shaw_gated, relative_gated, aposnet_ungated, rposnet_ungated; rPosNet in some places
alone: rposnet_e, _d, _c, _ec, _dc, _edc, for encoder, decoder, across), for all sets but multi30k a size (small, base,
big), and for a sweep placements, features or gates (the paper's Tables 4, 5 and 6; without such a word Table 2, or 3
with big and small); or tiny (tests).
Each set, whose files are plain or .gz, with its hardware, time and expected BLEU, the last four by the paper:
- multi30k: English to German, a small model; train, val and test_2016_flickr in .en and .de. Hardware and time: one CPU
  core, half an hour to an hour a run (lightconv 2.4 hours). Expected: 37.2 to 38.5, by mixer (docs/posnet.md). The
  sweep of placements, features or gates has 8, 5 or 10 models, of which 2 to 6 have three seeds. With the word long
  each run has 40 epochs instead of 10, at whose end BLEU still rose, and each model of the sweep five seeds. Neither
  has been run.
The others need GPUs (the paper: a 2080 Ti for iwslt14, two for the rest, four for big models), and were not run here.
`python launch/prepare.py SET FILES` makes them; every n-th pair of train is the validation, and of WMT, pairs whose
lengths differ 1.5 times are left out:
- iwslt14: German to English, lower-case, small models by default (Table 3); train and test in .de and .en, n = 23.
  Expected: Transformer 35.0, rPosNet 35.1.
- wmt14_en_de: English to German; train and newstest2014 in .en and .de, n = 100. Expected: Transformer 26.3 (big 27.1),
  rPosNet 26.6 (27.3). Or --config.data.name=tfds/wmt14_translate/de-en --config.data.test_part=test, as tfds has
  prepared it.
- wmt14_en_fr: English to French; train and newstest2014 in .en and .fr, n = 1,333. Expected: 37.8 and 37.9.
- wmt18_en_zh: English to Chinese, with a vocabulary per language and three matrices; train and newstest2017 in .en and
  .zh, n = 1,333. Expected: 33.8 and 33.8. Its features are the paper's Table 5.
"""

from typing import Any

from ml_collections import ConfigDict

from configs.lib import common, common_nmt
from posattn_jax.analysis.plan import PAPER_SEEDS, Hypothesis, Plan, Treatment

SETS = {
    "multi30k": "Multi30k",
    "iwslt14": "IWSLT14, German to English",
    "wmt14_en_de": "WMT14, English to German",
    "wmt14_en_fr": "WMT14, English to French",
    "wmt18_en_zh": "WMT18, English to Chinese",
}
# The languages and parts of the paper's sets.
DATA: dict[str, dict[str, Any]] = {
    "iwslt14": {"source": "de", "target": "en", "fold_case": True, "normalization": "nfkc"},
    "wmt14_en_de": {"test_part": "newstest2014"},
    "wmt14_en_fr": {"target": "fr", "test_part": "newstest2014"},
    "wmt18_en_zh": {"target": "zh", "test_part": "newstest2017"},
}
# Their sizes. For Chinese the paper prints 32k and 45k; these give the totals of its Table 5. The authors' code does
# not split this text: Table 1 has 13k pairs of 17M for validation, one in 1,333 as for the French text.
WMT = {"max_ratio": 1.5, "malformed": "skip"}
RECIPES: dict[str, dict[str, Any]] = {
    "iwslt14": {"validation_part": "train/23", "vocabulary_size": 10_147},
    "wmt14_en_de": WMT | {"validation_part": "train/100", "vocabulary_size": 43_640},
    "wmt14_en_fr": WMT | {"validation_part": "train/1333", "vocabulary_size": 46_000},
    "wmt18_en_zh": WMT | {"validation_part": "train/1333", "source_vocabulary_size": 32_000, "vocabulary_size": 45_300},
}
# Of Multi30k: the word for longer runs; the mixers that its sweep compares without a table; and the treatments of each
# table that have three seeds, where the others have one.
LONG = "long"
MIXERS = ("transformer", "rposnet", "shaw", "aposnet", "lightconv", "glinear", "linear", "gaussian", "fourier")
MIXERS += ("rposnet_ungated", "rposnet_c")
SEVERAL = {
    "": ("transformer", "rposnet"),
    "placements": ("transformer", "rposnet", "rposnet_c", "rposnet_edc"),
    "features": ("lightconv", "rposnet"),
    "gates": ("transformer", "transformer_gated", "aposnet", "aposnet_ungated", "rposnet", "rposnet_ungated"),
}
QUESTIONS = {
    "": "what may mix tokens in the place of attention?",
    "placements": "where may rPosNet stand in the place of attention?",
    "features": "which features of rPosNet raise LightConv to it?",
    "gates": "what is a gate worth, and to which attention?",
}
HYPOTHESES = (
    Hypothesis("rPosNet and the Transformer differ", "rposnet", "transformer"),
    Hypothesis("aPosNet is below the Transformer", "aposnet", "transformer", "less"),
    Hypothesis("rPosNet across lowers BLEU", "rposnet_c", "transformer", "less"),
    Hypothesis("rPosNet everywhere lowers BLEU", "rposnet_edc", "transformer", "less"),
    Hypothesis("rPosNet is above LightConv", "rposnet", "lightconv", "greater"),
    Hypothesis("A gate raises the Transformer's BLEU", "transformer_gated", "transformer", "greater"),
    Hypothesis("A gate raises aPosNet's BLEU", "aposnet", "aposnet_ungated", "greater"),
    Hypothesis("A gate raises rPosNet's BLEU", "rposnet", "rposnet_ungated", "greater"),
)


def get_config(variant: str = "") -> ConfigDict:
    name, rest = common.first_word(variant, tuple(SETS))
    words = [word for word in rest.split(",") if word]
    mixers = [word for word in words if word in common_nmt.MIXERS] or ["transformer"]
    sizes = [word for word in words if word in common_nmt.SIZES] or [_size(name)]
    others = {"tiny", *common_nmt.COMPARED, *((LONG,) if name == "multi30k" else ())}
    if set(words) - {*mixers, *sizes, *others} or len(mixers) > 1 or len(sizes) > 1:
        known = ", ".join((*common_nmt.MIXERS, *common_nmt.SIZES))
        tables = ", ".join(filter(None, common_nmt.COMPARED))
        expected = f"a set of {', '.join(SETS)}; a mixer and a size of {known}; {tables}; or tiny"
        raise ValueError(f'config variant "{variant}": expected {expected}')
    config = common_nmt.get_config(mixers[0], sizes[0], "tiny" in words)
    if name == "multi30k":
        return _multi30k(config, mixers[0], words)
    config.data.update(DATA[name])
    if "tiny" not in words:
        config.data.update(dir=f"data/{name}", **RECIPES[name])
    return config


def _multi30k(config: ConfigDict, mixers: str, words: list[str]) -> ConfigDict:
    config.data.update(test_part="test_2016_flickr", normalization="nfkc")
    if "tiny" not in words:
        config.data.update(dir="data/multi30k", vocabulary_size=6000, buckets=(12, 16, 20, 24, 32, 64))
        # As in the runs of docs/results/multi30k: no dropout of weights, and batch sizes include padding.
        common_nmt.set_model(config, mixers, 128, 512, 4, 0.1, weight_dropout_rate=0.0, num_blocks=3)
        common_nmt.set_schedule(config, steps=0, warmup=1000)
        config.data.batch_unit = "places"
        config.train.update(batch_size=2048, accumulation_steps=1)
        config.train.update(total_epochs=40.0 if LONG in words else 10.0, eval_steps=0, keep_checkpoints=4)
    return config


def _size(name: str) -> str:
    return "small" if name == "iwslt14" else "base"


def sweep(variant: str = "") -> Plan:
    """A table of the paper, by the word of `common_nmt.COMPARED` in the variant, whose runs are judged by test BLEU.

    There is one seed, as the paper has. Of Multi30k there are three for some mixers, and five for all with "long";
    without a table its sweep compares `MIXERS`. Translations are tested against the Transformer's and Shaw's (2018).
    """
    name, rest = common.first_word(variant, tuple(SETS))
    words = rest.split(",")
    table = next((word for word in words if word in common_nmt.COMPARED), "")
    mixers, question, seeds, several = common_nmt.COMPARED[table], QUESTIONS[table], PAPER_SEEDS[:1], None
    if name == "multi30k" and LONG in words:
        seeds = PAPER_SEEDS
    elif name == "multi30k":
        seeds, several = PAPER_SEEDS[:3], SEVERAL[table]
        if not table:
            mixers, question = MIXERS, "can weights of positions alone, gated, translate as well as attention?"
    treatments = tuple(
        Treatment(
            mixer,
            common_nmt.LABELS[mixer],
            _fields(mixer, name, words),
            num_seeds=None if several is None or mixer in several else 1,
        )
        for mixer in mixers
    )
    return Plan(
        f"{SETS[name]}: {question}",
        treatments,
        tuple(each for each in HYPOTHESES if {each.treatment, each.control} <= set(several or mixers) & set(mixers)),
        seeds=seeds,
        evaluate={"task.decoding.beam_size": 12},
        part="test",
        baselines=tuple(mixer for mixer in ("transformer", "shaw") if mixer in mixers),
        response="bleu",
        source="Schmidt 2023",
    )


def _fields(mixer: str, name: str, words: list[str]) -> dict[str, Any]:
    """What a treatment sets in the config of a set."""
    if "tiny" in words:
        return common_nmt.mixer_fields(mixer, 2, 0.1, 16, 72)
    if name == "multi30k":
        return common_nmt.mixer_fields(mixer, 4, 0.0, 16, 128)
    size = next((word for word in words if word in common_nmt.SIZES), _size(name))
    _, _, num_heads, dropout_rate = common_nmt.SIZES[size]["model"]
    return common_nmt.mixer_fields(mixer, num_heads, dropout_rate, common_nmt.context_of(mixer, size), 128)
