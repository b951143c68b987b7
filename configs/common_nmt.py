"""What the configs of translation (Schmidt 2023) share: sizes, mixers, and the paper's training."""

import math
from typing import Any

from ml_collections import ConfigDict

from configs import common

# The rows of the paper's tables: what mixes tokens in both stacks; across, attention does.
MIXERS: dict[str, dict[str, Any]] = {
    "transformer": {},
    "shaw": {"encoder": "shaw", "decoder": "shaw"},
    "relative": {"encoder": "relative", "decoder": "relative"},
    "fourier": {"encoder": "fourier", "decoder": "attention"},
    "gaussian": {"encoder": "gaussian", "decoder": "gaussian"},
    "linear": {"encoder": "linear", "decoder": "linear"},
    "glinear": {"encoder": "glinear", "decoder": "glinear"},
    "lightconv": {"encoder": "lightconv", "decoder": "lightconv"},
    "lightconv_plain": {"encoder": "lightconv_plain", "decoder": "lightconv_plain"},
    "lightconv_gelu": {"encoder": "lightconv_gelu", "decoder": "lightconv_gelu"},
    "lightconv_global": {"encoder": "lightconv_global", "decoder": "lightconv_global"},
    "aposnet": {"encoder": "aposnet", "decoder": "aposnet"},
    "rposnet": {"encoder": "rposnet", "decoder": "rposnet"},
}
# Of Table 6: with the gate that they do not have, or without the one that they have.
for _name in ("transformer", "shaw", "relative"):
    MIXERS[f"{_name}_gated"] = MIXERS[_name] | {"gate": "yes"}
for _name in ("aposnet", "rposnet"):
    MIXERS[f"{_name}_ungated"] = MIXERS[_name] | {"gate": "no"}
# Of Table 4: where rPosNet is, in the encoder, the decoder, and across.
for _row in ("e", "d", "c", "ec", "dc", "edc"):
    MIXERS[f"rposnet_{_row}"] = {place: "rposnet" for place in ("encoder", "decoder", "cross") if place[0] in _row}
LABELS = {
    "transformer": "Transformer",
    "shaw": "Shaw et al. (2018)",
    "relative": "Relative self-attention",
    "fourier": "FourierNet",
    "gaussian": "GaussianNet",
    "linear": "LinearNet",
    "glinear": "gLinearNet",
    "lightconv": "LightConv",
    "lightconv_plain": "Light convolution",
    "lightconv_gelu": "Light convolution, GELU gate",
    "lightconv_global": "Light convolution, GELU gate, global context",
    "aposnet": "aPosNet",
    "rposnet": "rPosNet",
    "transformer_gated": "Transformer, gated",
    "shaw_gated": "Shaw et al. (2018), gated",
    "relative_gated": "Relative self-attention, gated",
    "aposnet_ungated": "aPosNet without gate",
    "rposnet_ungated": "rPosNet without gate",
    "rposnet_e": "rPosNet in the encoder alone",
    "rposnet_d": "rPosNet in the decoder alone",
    "rposnet_c": "rPosNet across alone",
    "rposnet_ec": "rPosNet in the encoder and across",
    "rposnet_dc": "rPosNet in the decoder and across",
    "rposnet_edc": "rPosNet everywhere",
}

# Width, feed-forward width, heads and dropout; updates; the evaluations averaged and the updates between them;
# micro-batches that make an update, and target tokens of each, on the paper's GPUs (1, 2, 4) together; and the scale of
# the learning rate.
SIZES: dict[str, dict[str, Any]] = {
    "small": {"model": (512, 1024, 8, 0.3), "steps": 30_000, "average": (30, 300), "batch": (8, 2048), "scale": 2.0},
    "base": {"model": (512, 2048, 8, 0.1), "steps": 150_000, "average": (7, 1000), "batch": (8, 3400), "scale": 1.0},
    "big": {"model": (1024, 4096, 16, 0.3), "steps": 300_000, "average": (20, 600), "batch": (4, 6800), "scale": 1.0},
}
WARMUP_STEPS = 4000


def get_config(variant: str = "", size: str = "base") -> ConfigDict:
    """Translation in the paper's form.

    Args:
      variant: a mixer and a size in any order, "rposnet,big"; by default the Transformer of `size`; or "tiny", of two
        updates with rPosNet, for tests.
      size: one of `SIZES`.
    """
    words = [word for word in variant.split(",") if word]
    sizes = [word for word in words if word in SIZES] or [size]
    mixers = [word for word in words if word in MIXERS] or ["transformer"]
    if set(words) - {"tiny", *sizes, *mixers} or len(sizes) > 1 or len(mixers) > 1:
        known = ", ".join((*MIXERS, *SIZES))
        raise ValueError(f'config variant "{variant}": expected a mixer and a size of {known}; or tiny')
    config = common.get_config()
    config.task = "translation"
    config.data.update(name="", dir="data/nmt", normalization="none")
    config.model.update(kind="seq2seq", num_blocks=6, mlp_dropout_rate=0.0, norm="pre", layer_norm_epsilon=1e-6)
    config.model.span.enabled = False
    config.train.eval_batch_size = 64
    config.optimizer.update(b2=0.98, eps=1e-9, schedule="inverse_sqrt")
    recipe = SIZES[sizes[0]]
    set_size(config, *recipe["model"], steps=recipe["steps"], warmup=WARMUP_STEPS, scale=recipe["scale"])
    (keep, every), (accumulate, batch_size) = recipe["average"], recipe["batch"]
    config.train.update(keep_checkpoints=keep, eval_steps=every, accumulation_steps=accumulate, batch_size=batch_size)
    if sizes[0] == "big" and mixers[0].startswith("shaw"):
        config.model.mixer.context = 8  # as the authors' code has it; the paper's 8 for others does not fit Table 3
    if "tiny" in words:
        config.data.update(vocabulary_size=60, buckets=(24, 72))
        config.model.update(num_blocks=1)
        set_size(config, 8, 16, 2, 0.1, steps=2, warmup=2, scale=1.0)
        config.train.update(batch_size=576, eval_batch_size=8, accumulation_steps=2, keep_checkpoints=2, eval_steps=1)
        config.decode.update(beam_size=2, batch_size=8)
        mixers = ["rposnet_edc"]
    config.model.mixer.update(MIXERS[mixers[0]])
    return config


def set_size(
    config: ConfigDict,
    width: int,
    mlp_dim: int,
    num_heads: int,
    dropout_rate: float,
    *,
    steps: int,
    warmup: int,
    scale: float,
) -> None:
    """Sizes, dropout of weights too, and a learning rate that follows them (Vaswani 2017).

    Its peak is  scale / sqrt(width warmup).
    """
    config.model.update(width=width, mlp_dim=mlp_dim, num_heads=num_heads)
    config.model.update(dropout_rate=dropout_rate, attention_dropout_rate=dropout_rate)
    config.train.update(total_steps=steps)
    config.optimizer.update(learning_rate=scale / math.sqrt(width * warmup), warmup_steps=warmup)
