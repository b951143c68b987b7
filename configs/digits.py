"""scikit-learn's digits (8 x 8, real images, embedded): the paper's recipe with 3 blocks, SIREN and learned span.

python -m posattn_jax.main --config=configs/digits.py --workdir=runs/digits
Hardware and time: 2 CPU cores, about 1.5 minutes. Expected best-epoch validation accuracy: .969 to .981 (five seeds).
"""

from ml_collections import ConfigDict

from configs import common
from posattn_jax.analysis.plan import Plan


def get_config(variant: str = "") -> ConfigDict:
    config = common.apply_variant(common.get_config(), "digits")
    if variant == "tiny":
        config = common.apply_variant(config, variant)
        config.data.pool = 2
    elif variant:
        raise ValueError(f'digits variant "{variant}": expected none or "tiny"')
    return config


def sweep(variant: str = "") -> Plan:
    return common.span_paper_sweep()
