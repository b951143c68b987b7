"""BERT-base (Chang 2021, Table 4), pre-trained by masked language modelling on the text files of a folder.

python -m posattn_jax.main --config=configs/bert_base.py:composite --workdir=runs/NAME --config.data.dir=FOLDER
Hardware and time: 16 days on eight GPUs (the paper); not run here. Expected loss: not printed.
Variants as configs/bert_small.py; sweep(): those that the paper trained, "", :fixed, :dynamic and :composite.
"""

from ml_collections import ConfigDict

from configs.lib import common_bert
from posattn_jax.analysis.plan import PAPER_SEEDS, Plan


def get_config(variant: str = "") -> ConfigDict:
    return common_bert.of_paper("bert_base", variant, learning_rate=1e-4, total_steps=1_000_000, batch_size=256)


def sweep(variant: str = "") -> Plan:
    return common_bert.sweep(common_bert.FIVE[1:], "bert_base", PAPER_SEEDS[:1])
