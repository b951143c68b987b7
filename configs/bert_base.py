"""BERT-base (Chang 2021, Table 4), pre-trained by masked language modelling on the text files of a folder.

python -m posattn_jax.main --config=configs/bert_base.py:composite --workdir=runs/NAME --config.data.dir=FOLDER
Hardware and time: the paper's 8 GPUs took about 16 days; not run here. Expected: the paper prints no loss.
Variants as configs/bert_small.py; the paper trained "", :fixed, :dynamic and :composite.
"""

from ml_collections import ConfigDict

from configs import common_bert


def get_config(variant: str = "") -> ConfigDict:
    config = common_bert.get_config("bert_base", variant)
    if variant != "tiny":
        config.train.update(total_steps=1_000_000, batch_size=256)
        config.optimizer.learning_rate = 1e-4
    return config
