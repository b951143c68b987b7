"""scikit-learn's digits (8 x 8, real images, embedded): the paper's recipe with 3 blocks, SIREN and learned span.

python -m posattn_jax.main --config=configs/digits.py --workdir=runs/digits
Hardware and time: 2 CPU cores, about 1.5 minutes. Expected best-epoch validation accuracy: .969 to .981 (five seeds).
"", :composite (fixed and dynamic convolutions, of all offsets, in the place of SIREN and span: .877, one seed; with
kernels of 5 x 5 .560, for the last pixel, which is read, then knows others only by their direction), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs import common
from posattn_jax.analysis.plan import Plan


def get_config(variant: str = "") -> ConfigDict:
    config = common.apply_variant(common.get_config(), "digits")
    if variant == "composite":
        config.model.terms = ("content", "fixed_convolution", "dynamic_convolution")
        config.model.kernel.shape = (15, 15)
        config.model.encoding.kind = "none"
        config.model.span.enabled = False
    elif variant == "tiny":
        config = common.apply_variant(config, variant)
        config.data.pool = 2
    elif variant:
        raise ValueError(f'digits variant "{variant}": expected none, "composite" or "tiny"')
    return config


def sweep(variant: str = "") -> Plan:
    return common.span_paper_sweep()
