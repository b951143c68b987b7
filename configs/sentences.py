"""Your own labelled sentences, or pairs of them, in TSV, CSV or JSONL; docs/data.md has the formats.

python -m posattn_jax.main --config=configs/sentences.py --workdir=runs/NAME --config.data.dir=FILE_OR_FOLDER
... --mode=evaluate; python -m posattn_jax.main --mode=predict --workdir=runs/NAME < LINES
python -m posattn_jax.main --config=configs/sentences.py:from=RUN --mode=sweep ...   adds parts to RUN's model
Hardware and time: depend on your data, as those of configs/glue.py:bert_tiny. Expected: not known.
"" (the columns sentence and label), :pairs (sentence1, sentence2 and label), :from=RUN or :pairs,from=RUN (starts from
that run, such as an imported BERT, with its model: docs/weights.md), :tiny (tests). Without from=RUN it starts from
scratch, or with --config.task.pretrained=RUN from a run of configs/bert.py:tiny,composite.
"""

from ml_collections import ConfigDict

from configs.lib import common, common_bert, common_grafts
from posattn_jax.analysis.plan import Plan
from posattn_jax.config.parts import part
from posattn_jax.data.text.sentence_files import SentenceFiles
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.sentence_prediction import SentencePrediction
from posattn_jax.train.schedule import Linear


def get_config(variant: str = "") -> ConfigDict:
    words, start = _words(variant)
    if variant != "tiny" and words - {"pairs"}:
        raise ValueError(f'sentences variant "{variant}": expected none, "pairs", "from=RUN", both or "tiny"')
    config = common_bert.get_config("bert_tiny", "tiny" if variant == "tiny" else "composite")
    config.data, config.task = part(SentenceFiles), part(SentencePrediction)
    config.optimizer.update(learning_rate=3e-4, schedule=part(Linear))
    if variant == "tiny":
        config.data.update(vocabulary_size=50, length=12)
        return config
    config.train.update(total_epochs=5.0, batch_size=32)
    config.optimizer.schedule.warmup_epochs = 0.5
    if "pairs" in words:
        config.data.sentences = ("sentence1", "sentence2")
    if start is not None:  # as configs/glue.py:from=RUN
        config.task.pretrained, config.model = start, common.of_run(start).model
        config.data.length = min(config.data.length, config.model.get("max_length") or config.data.length)
        config.train.total_epochs, config.optimizer.learning_rate = 3.0, 5e-5
        config.optimizer.schedule.warmup_epochs = 0.3
        config.optimizer.weight_decay = 0.0
    return config


def sweep(variant: str = "") -> Plan:
    """Parts added to the model of from=RUN, which do not change its function at first: does one help on your data?"""
    _, start = _words(variant)
    if start is None:
        raise InputError(f'sweep of "{variant}": expected from=RUN')
    return common_grafts.sweep(start, {"own": "own sentences"}, {"own": {}}, "score")


def _words(variant: str) -> tuple[set[str], str | None]:
    """The words of a variant without from=RUN, and RUN or None."""
    words = set(variant.split(",")) - {""}
    start = next((word for word in words if word.startswith("from=")), None)
    return words - {start}, start and start.removeprefix("from=")
