"""German to English on IWSLT14, lower-case, with the paper's small models (Schmidt 2023, Table 3).

python -m posattn_jax.main --config=configs/iwslt14.py:rposnet --workdir=runs/NAME --config.data.dir=IWSLT14
IWSLT14 has train and test in .de and .en, plain or .gz, as `python launch/prepare.py iwslt14 FILES` makes them; every
23rd pair of train is the validation. Hardware and time: one GPU (the paper: a 2080 Ti); not run here. Expected BLEU, by
the paper: Transformer 35.0, rPosNet 35.1. Variants as configs/wmt14_en_de.py.
"""

from ml_collections import ConfigDict

from configs.lib import common_nmt
from posattn_jax.analysis.plan import Plan


def get_config(variant: str = "") -> ConfigDict:
    config = common_nmt.get_config(variant, "small")
    config.data.update(source="de", target="en", fold_case=True, normalization="nfkc")
    if "tiny" not in variant.split(","):
        config.data.update(dir="data/iwslt14", validation_part="train/23", vocabulary_size=10_147)
    return config


def sweep(variant: str = "") -> Plan:
    return common_nmt.sweep(variant, "IWSLT14, German to English", "small")
