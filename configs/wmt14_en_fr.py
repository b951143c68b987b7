"""English to French on WMT14 (Schmidt 2023, Table 2).

python -m posattn_jax.main --config=configs/wmt14_en_fr.py:rposnet --workdir=runs/NAME --config.data.dir=WMT14
WMT14 has train and newstest2014 in .en and .fr, plain or .gz, as `python launch/prepare.py wmt14_en_fr FILES` makes
them; every 1,333rd pair of train is the validation, and pairs whose lengths differ 1.5 times are left out.
Hardware and time: GPUs; not run here. Expected BLEU, by the paper: Transformer 37.8, rPosNet 37.9. Variants as
configs/wmt14_en_de.py.
"""

from ml_collections import ConfigDict

from configs.lib import common_nmt
from posattn_jax.analysis.plan import Plan


def get_config(variant: str = "") -> ConfigDict:
    config = common_nmt.get_config(variant)
    config.data.update(target="fr", test_part="newstest2014")
    if "tiny" not in variant.split(","):
        config.data.update(dir="data/wmt14_en_fr", validation_part="train/1333", vocabulary_size=46_000)
        config.data.update(max_ratio=1.5, malformed="skip")
    return config


def sweep(variant: str = "") -> Plan:
    return common_nmt.sweep(variant, "WMT14, English to French")
