"""A tag for every word: do convolutions in attention help at a token-level task? (Chang 2021, section 3.3; ours.)

python -m posattn_jax.main --config=configs/tagging.py:composite --workdir=runs/NAME
python -m posattn_jax.main --config=configs/tagging.py --mode=sweep --workdir=runs/tagging --workers=1
Made-up sentences, without download: all nouns, verbs and adjectives are the same words, so that only the order of the
words tells their tags; a verb's number is that of the first determiner, 2 to 12 words before it.
python -m posattn_jax.main --config=configs/tagging.py:files,composite --workdir=runs/NAME --config.data.dir=FOLDER
reads your sentences instead, with a word a line in columns: those of CoNLL, and of Universal Dependencies.
... --mode=predict --workdir=runs/NAME < SENTENCES
Hardware and time: one CPU core, a minute or two a run (an estimate). Expected validation accuracy: not known.
composite (also ""), none, absolute, fixed, dynamic; files; from=RUN (files only: starts from that run, such as an
imported BERT, with its model and tokenizer); tiny (tests). One of them, and files or not, in any order.
"""

from ml_collections import ConfigDict

from configs.lib import common, common_bert
from posattn_jax.analysis.plan import PAPER_SEEDS, Hypothesis, Plan
from posattn_jax.config.parts import part
from posattn_jax.data.text.agreement import Agreement
from posattn_jax.data.text.tagged import TaggedFiles
from posattn_jax.tasks.tagging import Tagging


def get_config(variant: str = "") -> ConfigDict:
    """A BERT of three blocks with one of `common_bert.FIVE`."""
    words = [word for word in variant.split(",") if word]
    start = next((word.removeprefix("from=") for word in words if word.startswith("from=")), "")
    names = [word for word in words if word in common_bert.FIVE]
    rest = [word for word in words if word not in names and not word.startswith("from=")]
    is_tiny = "tiny" in rest
    too_many = len(names) + bool(start) + is_tiny > 1
    if set(rest) - {"files", "tiny"} or too_many or (start and "files" not in rest):
        known = ", ".join(common_bert.FIVE)
        raise ValueError(f'config variant "{variant}": expected one of {known}, from=RUN or tiny; and files, or not')
    config = common_bert.get_config("bert_tiny", "tiny" if is_tiny else (names or ["composite"])[0])
    config.data, config.task = part(Agreement), part(Tagging, pretrained=start)
    if "files" in rest:
        config.data = part(TaggedFiles)
    if start:
        config.model = common.of_run(start).model
    if is_tiny:
        sizes = {} if "files" in rest else {"num_train": 80, "num_validation": 20, "num_test": 10}
        config.data.update(vocabulary_size=70, length=28, **sizes)
        return config
    config.train.update(total_steps=800, batch_size=32, eval_steps=200)
    config.optimizer.learning_rate = 1e-4 if start else 1e-3
    config.optimizer.schedule.warmup_steps = 80
    return config


def sweep(variant: str = "") -> Plan:
    """Chang 2021, section 3.3: "convolutions could be beneficial to more local tasks (e.g. token-level tasks)".

    The hypotheses were stated before any run. Without positions only determiners, prepositions and the full stop can be
    told.
    """
    if set(variant.split(",")) - {"", "files", "tiny"}:
        raise ValueError(f'sweep of "{variant}": expected nothing or files')
    claims = (
        ("Absolute positions give a higher accuracy than none", "absolute", "none"),
        ("Fixed convolutions give a higher accuracy than absolute positions", "fixed", "absolute"),
        ("Dynamic convolutions give a higher accuracy than absolute positions", "dynamic", "absolute"),
        ("Composite attention gives a higher accuracy than absolute positions", "composite", "absolute"),
        ("Composite attention gives a higher accuracy than fixed convolutions", "composite", "fixed"),
        ("Composite attention gives a higher accuracy than dynamic convolutions", "composite", "dynamic"),
    )
    return Plan(
        "Tags of words: are convolutions in attention better than absolute positions at a token-level task?",
        common_bert.treatments(common_bert.FIVE, "bert_tiny"),
        tuple(Hypothesis(*claim, "greater") for claim in claims),
        seeds=PAPER_SEEDS[:3],
        epoch="last",
    )
