"""Your own labelled sentences, or pairs of them, in TSV, CSV or JSONL; docs/training.md has the formats.

python -m posattn_jax.main --config=configs/sentences.py --workdir=runs/NAME --config.data.dir=FILE_OR_FOLDER
... --mode=evaluate; python -m posattn_jax.main --mode=predict --workdir=runs/NAME < LINES
Hardware and time: depend on your data, as those of configs/glue.py:bert_tiny. Expected: not known.
"" (the columns sentence and label), :pairs (sentence1, sentence2 and label), :tiny (tests). It starts from scratch, or
with --config.task.pretrained=RUN from a run of configs/bert_tiny.py:composite.
"""

from ml_collections import ConfigDict

from configs import common_bert
from posattn_jax.build.parts import part
from posattn_jax.data.sentence_files import SentenceFiles
from posattn_jax.tasks.sentence_prediction import SentencePrediction
from posattn_jax.train.schedule import Linear


def get_config(variant: str = "") -> ConfigDict:
    config = common_bert.get_config("bert_tiny", "tiny" if variant == "tiny" else "composite")
    sizes = {"vocabulary_size": 50, "length": 12} if variant == "tiny" else {}
    config.data = part(SentenceFiles, **sizes)
    config.task = part(SentencePrediction)
    config.optimizer.update(learning_rate=3e-4, schedule=part(Linear, warmup_epochs=0.5))
    match variant:
        case "":
            config.train.update(total_epochs=5.0, batch_size=32)
        case "pairs":
            config.train.update(total_epochs=5.0, batch_size=32)
            config.data.sentences = ("sentence1", "sentence2")
        case "tiny":
            config.optimizer.schedule.warmup_epochs = 0.0
        case _:
            raise ValueError(f'sentences variant "{variant}": expected none, "pairs" or "tiny"')
    return config
