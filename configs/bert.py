"""A BERT (Chang 2021), pre-trained by masked language modelling; sweep(): do positions help, and which?

python launch/english_text.py FROM data/english   (what FROM holds: see there)
python -m posattn_jax.main --config=configs/bert.py:tiny,composite --workdir=runs/NAME \
    --config.data.dir=data/english/train --config.data.validation_dir=data/english/validation
python -m posattn_jax.main --config=configs/bert.py:small,composite --workdir=runs/NAME --config.data.dir=FOLDER
A variant is a size, by default tiny, and a word after it: none, absolute (the default), fixed, dynamic, composite,
composite_key, depthwise, composite_depthwise, qk, value, qkv, composite_qk, composite_value, composite_qkv, convbert;
or test (two steps). Each size with its hardware, time and expected loss:
- tiny: three blocks of width 128, for a few megabytes of English. Hardware and time: one CPU core, 8 to 10 minutes; the
  sweep on two, 75 minutes. Expected validation loss: composite 4.10, absolute positions 4.61, none 5.34 (three seeds
  each). These runs hid exactly round(.15 n) of the n tokens of a sequence. Now each token is hidden with probability
  .15, which takes 1.2 times as long.
  tiny,tables: its sweep has all the words, as the paper's Tables 1 to 3, but for ten times the updates (not run yet).
  tiny,from=RUN: goes on from that run, for example an imported BERT, on your text; its sweep adds parts to it.
- small: the paper's BERT-small (Table 4) on the text files of a folder; its sweep has all the words. Hardware and time:
  24 hours on two Titan Xp, GLUE included (the paper); not run here. Expected loss: not printed.
- base: the paper's BERT-base (Table 4); its sweep has those that the paper trained: absolute, fixed, dynamic and
  composite. Hardware and time: 16 days on eight GPUs (the paper); not run here. Expected loss: not printed.
"""

from collections.abc import Sequence

from ml_collections import ConfigDict

from configs.lib import common, common_bert, common_grafts
from posattn_jax.analysis.plan import PAPER_SEEDS, Claim, Hypothesis, Plan

SIZES = ("tiny", "small", "base")
ALL = tuple(common_bert.CONVOLUTIONS)
# What the paper says of its Tables 1 to 3: which of two treatments has the higher or the lower loss.
CLAIMS: tuple[Claim, ...] = (
    ("Without positions the loss is higher than with absolute ones", "none", "absolute", "greater"),
    ("Fixed convolutions give a lower loss than absolute positions", "fixed", "absolute", "less"),
    ("Dynamic convolutions give a lower loss than absolute positions", "dynamic", "absolute", "less"),
    ("Composite attention gives a lower loss than absolute positions", "composite", "absolute", "less"),
    ("Composite attention gives a lower loss than fixed convolutions", "composite", "fixed", "less"),
    ("Composite attention gives a lower loss than dynamic convolutions", "composite", "dynamic", "less"),
    ("Key-based convolutions as well give a higher loss than composite", "composite_key", "composite", "greater"),
    ("Depthwise convolutions give a lower loss than absolute positions", "depthwise", "absolute", "less"),
    ("Depthwise convolutions give a higher loss than fixed lightweight", "depthwise", "fixed", "greater"),
    ("Depthwise convolutions give a higher loss than composite", "depthwise", "composite", "greater"),
    ("Depthwise ones as well give a higher loss than composite", "composite_depthwise", "composite", "greater"),
    ("Convolved queries and keys give a lower loss than absolute positions", "qk", "absolute", "less"),
    ("Convolved values give a lower loss than absolute positions", "value", "absolute", "less"),
    ("All three convolved give a lower loss than absolute positions", "qkv", "absolute", "less"),
    (
        "Convolved queries and keys as well give a higher loss than composite",
        "composite_qk",
        "composite",
        "greater",
    ),
    ("Convolved values as well give a higher loss than composite", "composite_value", "composite", "greater"),
    ("All three convolved as well give a higher loss than composite", "composite_qkv", "composite", "greater"),
)


def get_config(variant: str = "") -> ConfigDict:
    size, word = common.first_word(variant, SIZES)
    if word == "test":
        return common_bert.get_config(f"bert_{size}", "tiny")
    own = ("tables", "from=RUN") if size == "tiny" else ()
    if word not in ("", *ALL, *own) and not (own and word.startswith("from=")):
        known = ", ".join((*ALL, *own, "test"))
        raise ValueError(f'config variant "{variant}": expected one of {", ".join(SIZES)}, and of {known}')
    return _of_our_size(word) if size == "tiny" else _of_paper(size, word)


def _of_our_size(word: str) -> ConfigDict:
    is_start = word.startswith("from=")
    is_long = word == "tables"
    config = common_bert.get_config("bert_tiny", "none" if is_start else "" if is_long else word)
    config.data.update(vocabulary_size=4096, length=40)
    config.train.update(total_steps=20_000 if is_long else 2000, batch_size=64)
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule.warmup_steps = 200
    if is_start:
        config.task.pretrained = word.removeprefix("from=")
        config.model = common.of_run(config.task.pretrained).model
        config.data.length = min(config.data.length, config.model.get("max_length") or config.data.length)
        config.optimizer.learning_rate = 1e-4
    return config


def _of_paper(size: str, word: str) -> ConfigDict:
    """Pre-trained as in Table 4, and evaluated every 5,000 updates.

    An epoch of the paper's 31 million pairs is longer than all of the small model's training. 10,000 of the 1.5 million
    held-out pairs are evaluated. All of them would take most of the time of 5,000 updates, which are 640,000 pairs.
    """
    config = common_bert.get_config(f"bert_{size}", word)
    is_small = size == "small"
    config.train.update(total_steps=125_000 if is_small else 1_000_000, batch_size=128 if is_small else 256)
    config.train.eval_steps = 5000
    config.data.validation_limit = 10_000
    config.optimizer.learning_rate = 3e-4 if is_small else 1e-4
    return config


def sweep(variant: str = "") -> Plan:
    """With from=RUN, the treatments are parts added to that run's model, judged by the accuracy of hidden tokens."""
    size, word = common.first_word(variant, SIZES)
    match size, word:
        case "tiny", _ if word.startswith("from="):
            return common_grafts.sweep(word.removeprefix("from="), {"own": "your text"}, {"own": {}}, "accuracy")
        case "tiny", "tables":
            return _of_convolutions(size, ALL, PAPER_SEEDS, others=3)
        case "tiny", _:
            return _of_convolutions(size, common_bert.FIVE, PAPER_SEEDS[:3])
        case "small", _:
            return _of_convolutions(size, ALL, PAPER_SEEDS[:1])
        case _:
            return _of_convolutions(size, common_bert.FIVE[1:], PAPER_SEEDS[:1])


def _of_convolutions(size: str, names: Sequence[str], seeds: tuple[int, ...], others: int | None = None) -> Plan:
    """Compares some of `ALL` by the loss after the last update; for `others` see `common_bert.treatments`."""
    return Plan(
        "Masked language modelling: are convolutions in attention better than absolute positions?",
        common_bert.treatments(names, f"bert_{size}", others),
        tuple(Hypothesis(*claim) for claim in CLAIMS if {claim[1], claim[2]} <= set(names)),
        seeds=seeds,
        response="loss",
        epoch="last",
    )
