"""scikit-learn's digits (8 x 8, real images, embedded): the paper's recipe with 3 blocks, SIREN and learned span.

python -m posattn_jax.main --config=configs/digits.py --workdir=runs/digits
Hardware and time: 2 CPU cores, about 1.5 minutes. Expected best-epoch validation accuracy: .969 to .981 (five seeds).
"", :short_span (a ramp for each head that starts small: .983, ten seeds, with 33 % of all pairs; its sweep
compares it with a Gaussian, a window and no span: docs/results/digits_short_span), :composite (fixed and dynamic
convolutions of all offsets, instead of SIREN and span: .791, one seed; .772 with kernels of 5 x 5), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common
from posattn_jax import Content, GaussianSpan, KernelEncoding, Positional, RelativeBias
from posattn_jax.analysis.plan import PAPER_SEEDS, Hypothesis, Plan, Treatment
from posattn_jax.config.parts import change, part

RAMP_WIDTH = 3 / 7  # 3 of the 7 places: a weight of 1 up to 2 places, so the keys of a window of 2


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
        change(config, common.learned_ramp(RAMP_WIDTH))
    elif variant == "tiny":
        config = common.apply_variant(config, variant)
        config.data.pool = 2
    elif variant:
        raise ValueError(f'digits variant "{variant}": expected none, "short_span", "composite" or "tiny"')
    return config


def sweep(variant: str = "") -> Plan:
    """The paper's treatments. With "short_span": spans that start short against none, and against a window."""
    if variant != "short_span":
        return common.span_paper_sweep()
    span = part(GaussianSpan, initial_sigma=0.2, mode="log_add", per_head=True)
    gaussian = {common.SPAN: span, "task.span_penalty": 0.1, "optimizer.span_learning_rate": 5e-4}
    return Plan(
        "Do short spans cost accuracy on digits?",
        (Treatment("gaussian", "Gaussian with a penalty", gaussian), *common.ramp_and_rivals(RAMP_WIDTH, 2)),
        (
            Hypothesis("A ramp is not worse than no span by .01", "ramp", "none", "greater", margin=0.01),
            Hypothesis("A ramp is not worse than a window of 2 by .01", "ramp", "window_2", "greater", margin=0.01),
            Hypothesis("A ramp is not worse than the Gaussian by .01", "ramp", "gaussian", "greater", margin=0.01),
            Hypothesis("A ramp is better than no span", "ramp", "none", "greater"),
        ),
        seeds=(*PAPER_SEEDS, *range(1, 6)),
    )
