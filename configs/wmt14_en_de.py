"""English to German on WMT14 (Schmidt 2023, Tables 2, 3, 4 and 6).

python -m posattn_jax.main --config=configs/wmt14_en_de.py:rposnet --workdir=runs/NAME --config.data.dir=WMT14
... --config.data.name=tfds/wmt14_translate/de-en --config.data.test_part=test: as tfds has prepared it
WMT14 has train and newstest2014 in .en and .de, plain or .gz, as `python launch/prepare.py wmt14_en_de FILES` makes
them; every 100th pair of train is the validation, and pairs whose lengths differ 1.5 times are left out.
Hardware and time: GPUs (the paper: two 2080 Ti, four for the big models); not run here. Expected BLEU, by the paper:
Transformer 26.3 (big 27.1), rPosNet 26.6 (27.3).
A variant is a mixer (transformer, shaw, relative, fourier, gaussian, linear, glinear, lightconv, lightconv_plain,
lightconv_gelu, lightconv_global, aposnet, rposnet; with the gate or without: transformer_gated, shaw_gated,
relative_gated, aposnet_ungated, rposnet_ungated; rPosNet in some places alone: rposnet_e, _d, _c, _ec, _dc, _edc, for
encoder, decoder, across) and a size (small, base, big), in any order; or tiny (tests).
--mode=sweep trains the models of Table 2, and of Table 3 with the variant big. The variants placements, features and
gates are Tables 4, 5 (which the paper has for Chinese) and 6.
"""

from ml_collections import ConfigDict

from configs.lib import common_nmt
from posattn_jax.analysis.plan import Plan


def get_config(variant: str = "") -> ConfigDict:
    config = common_nmt.get_config(variant)
    config.data.test_part = "newstest2014"
    if "tiny" not in variant.split(","):
        config.data.update(dir="data/wmt14_en_de", validation_part="train/100", vocabulary_size=43_640)
        config.data.update(max_ratio=1.5, malformed="skip")
    return config


def sweep(variant: str = "") -> Plan:
    return common_nmt.sweep(variant, "WMT14, English to German")
