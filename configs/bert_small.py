"""BERT-small (Chang 2021, Table 4), pre-trained by masked language modelling on the text files of a folder.

python -m posattn_jax.main --config=configs/bert_small.py:composite --workdir=runs/NAME --config.data.dir=FOLDER
Hardware and time: the paper's two Titan Xp took about 20 hours; not run here. Expected: the paper prints no loss.
"" (absolute positions), :none, :fixed, :dynamic, :composite, :composite_key, :depthwise, :composite_depthwise, :qk,
:value, :qkv, :composite_qk, :composite_value, :composite_qkv, :convbert, :tiny (tests).
"""

from ml_collections import ConfigDict

from configs import common_bert


def get_config(variant: str = "") -> ConfigDict:
    config = common_bert.get_config("bert_small", variant)
    if variant != "tiny":
        config.train.update(total_steps=125_000, batch_size=128)
        config.optimizer.learning_rate = 3e-4
    return config
