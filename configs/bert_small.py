"""BERT-small (Chang 2021, Table 4), pre-trained by masked language modelling on the text files of a folder.

python -m posattn_jax.main --config=configs/bert_small.py:composite --workdir=runs/NAME --config.data.dir=FOLDER
Hardware and time: 24 hours on two Titan Xp, GLUE included (the paper); not run here. Expected loss: not printed.
"" (absolute positions), :none, :fixed, :dynamic, :composite, :composite_key, :depthwise, :composite_depthwise, :qk,
:value, :qkv, :composite_qk, :composite_value, :composite_qkv, :convbert, :tiny (tests); sweep(): all of them.
"""

from ml_collections import ConfigDict

from configs.lib import common_bert
from posattn_jax.analysis.plan import PAPER_SEEDS, Plan


def get_config(variant: str = "") -> ConfigDict:
    return common_bert.of_paper("bert_small", variant, learning_rate=3e-4, total_steps=125_000, batch_size=128)


def sweep(variant: str = "") -> Plan:
    return common_bert.sweep(tuple(common_bert.CONVOLUTIONS), "bert_small", PAPER_SEEDS[:1])
