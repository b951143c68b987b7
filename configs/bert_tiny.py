"""A BERT for two CPU cores, pre-trained on a few megabytes of English; sweep(): do positions help, and which?

python launch/english_text.py FROM data/english   (what FROM holds: see there)
python -m posattn_jax.main --config=configs/bert_tiny.py:composite --workdir=runs/NAME \
    --config.data.dir=data/english/train --config.data.validation_dir=data/english/validation
Hardware and time: one CPU core, 8 to 10 minutes; the sweep on two, 75 minutes. Expected validation loss: 4.10 (with
absolute positions 4.61, without positions 5.34; three seeds each). These runs hid exactly round(.15 n) of the n tokens
of a sequence. Now each token is hidden with probability .15, which takes 1.2 times as long. Variants as
configs/bert_small.py; :tables, whose sweep has all of them, as the paper's Tables 1 to 3, but for ten times the
updates (not run yet); from=RUN goes on from that run, for example an imported BERT, on your text.
"""

from ml_collections import ConfigDict

from configs.lib import common, common_bert, common_grafts
from posattn_jax.analysis.plan import PAPER_SEEDS, Plan


def get_config(variant: str = "") -> ConfigDict:
    is_start = variant.startswith("from=")
    is_long = variant == "tables"
    config = common_bert.get_config("bert_tiny", "none" if is_start else "" if is_long else variant)
    if variant != "tiny":
        config.data.update(vocabulary_size=4096, length=40)
        config.train.update(total_steps=20_000 if is_long else 2000, batch_size=64)
        config.optimizer.learning_rate = 1e-3
        config.optimizer.schedule.warmup_steps = 200
    if is_start:
        config.task.pretrained = variant.removeprefix("from=")
        config.model = common.of_run(config.task.pretrained).model
        config.data.length = min(config.data.length, config.model.get("max_length") or config.data.length)
        config.optimizer.learning_rate = 1e-4
    return config


def sweep(variant: str = "") -> Plan:
    """With from=RUN, the treatments are parts added to that run's model, judged by the accuracy of hidden tokens."""
    if variant.startswith("from="):
        return common_grafts.sweep(variant.removeprefix("from="), {"own": "your text"}, {"own": {}}, "accuracy")
    if variant == "tables":
        return common_bert.sweep(tuple(common_bert.CONVOLUTIONS), "bert_tiny", PAPER_SEEDS, others=3)
    return common_bert.sweep(common_bert.FIVE, "bert_tiny", PAPER_SEEDS[:3])
