"""scikit-learn's digits (8 x 8, real images, embedded): the paper's recipe with 3 blocks, SIREN and learned span.

python -m posattn_jax.main --config=configs/digits.py --workdir=runs/digits
Hardware and time: 2 CPU cores, about 1.5 minutes. Expected best-epoch validation accuracy: .969 to .981 (five seeds).
"", :short_span (one span per head, which starts small and has a penalty: .98, one seed, with 40 % of all pairs instead
of all), :composite (fixed and dynamic convolutions of all offsets, instead of SIREN and span: .791, one seed; .772 with
kernels of 5 x 5), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common
from posattn_jax import Content, GaussianSpan, KernelEncoding, Positional, RelativeBias
from posattn_jax.analysis.plan import Plan
from posattn_jax.config.parts import change, part


def get_config(variant: str = "") -> ConfigDict:
    config = common.apply_variant(common.get_config(), "digits")
    if variant == "composite":
        kernel_shape = (15, 15)
        terms = {
            "content": part(Content),
            "fixed_convolution": part(RelativeBias, kernel_shape=kernel_shape),
            "dynamic_convolution": part(Positional, encoding=part(KernelEncoding, kernel_shape=kernel_shape)),
        }
        change(config, {common.TERMS: terms} | common.NO_SPAN)
    elif variant == "short_span":
        span = part(GaussianSpan, initial_sigma=0.2, mode="log_add", per_head=True)
        change(config, {common.SPAN: span, "task.span_penalty": 0.1, "optimizer.span_learning_rate": 5e-4})
    elif variant == "tiny":
        config = common.apply_variant(config, variant)
        config.data.pool = 2
    elif variant:
        raise ValueError(f'digits variant "{variant}": expected none, "short_span", "composite" or "tiny"')
    return config


def sweep(variant: str = "") -> Plan:
    return common.span_paper_sweep()
