"""Every position method and mixer in the same backbone, with the same budget: which one, and what does it cost?

python -m posattn_jax.main --mode=sweep --config=configs/compare.py --workdir=runs/compare --workers=2
python -m posattn_jax.sweeps.costs --config=configs/compare.py --workdir=runs/compare
python -m posattn_jax.main --mode=report --workdir=runs/compare
python -m posattn_jax.main --config=configs/compare.py --workdir=runs/none   # the backbone, which knows no positions
Hardware and time: "" 30 treatments x 3 seeds of 12 epochs, 3 hours of one CPU core: 35 to 110 s each, Translution and
its forms 2 to 13 minutes. Expected best-epoch validation accuracy, means of three seeds (docs/choosing.md): Translution
.981, SIREN with a span .977, RoPE .969, sinusoids .946; positions added to the inputs .44 to .86; none .266. :cifar 4
hours, 45 to 140 s a run, Translution and its forms 5 to 17 minutes; Translution .482, RoPE .427, SIREN with a span
.423, no positions .320. :text 29 x 3 runs of 30 to 75 s, Translution and its forms 2 to 5 minutes; validation loss
SIREN with a span 3.75, RoPE 4.05, no positions 4.81.
"" (digits), :cifar (CIFAR-10 at 8x8, 1 of the 10 epochs of configs/cifar2d_span.py:quick), :text (masked language
modelling of pieces of a few letters: 1,000 updates of 2 blocks of width 64; by the loss), :tiny (digits, tests).
"""

import dataclasses
from typing import Any

from ml_collections import ConfigDict

from configs.lib import common, common_bert, common_vit
from configs.lib.common_mixers import mixing
from posattn_jax import (
    AxialEncoding,
    Content,
    ConvolutionalProjections,
    DepthwiseConvolution,
    FourierPositions,
    GaussianSpan,
    KernelEncoding,
    LearnedEncoding,
    LearnedPositions,
    LinearBias,
    LowRankTranslution,
    PlusDepthwise,
    PlusRelative,
    Positional,
    RelativeBias,
    RelativeContent,
    RotaryContent,
    ScoreNetwork,
    SinusoidalEncoding,
    SinusoidalPositions,
    SirenEncoding,
    Translution,
    WindowSpan,
)
from posattn_jax.analysis.plan import PAPER_SEEDS, Hypothesis, Plan, Treatment
from posattn_jax.config.parts import change, part

# The dimensions of the grid; the size of a kernel of scores along each (all offsets, except for text); the half-span of
# a local window; the size of convolutions, which are slow on a CPU; and the rank of low-rank values, which is less than
# the features per head, 8 for images and 16 for text.
GRIDS = {"": (2, 15, 3, 3, 2), "cifar": (2, 15, 3, 3, 2), "text": (1, 17, 8, 17, 8), "tiny": (2, 7, 1, 3, 2)}

FAMILIES = {
    "no positions": ("none",),
    "added to the inputs": ("gehring", "vaswani", "fourier_features"),
    "relative vectors": (
        *("shaw", "music_transformer", "ramachandran", "transformer_xl", "zhao"),
        *("baseline", "siren", "siren_span"),
    ),
    "RoPE and biases": ("rope", "rope_1d", "alibi", "relative_bias"),
    "convolutions": ("composite", "depthwise", "convolutional_qk"),
    "a matrix a displacement": ("translution", "low_rank", "general", "relative_content"),
    "weights from positions alone": (
        *("aposnet", "rposnet", "lightconv", "gaussiannet"),
        *("linearnet", "glinearnet", "fouriernet"),
    ),
}
FAMILY_OF = {name: family for family, names in FAMILIES.items() for name in names}


def get_config(variant: str = "") -> ConfigDict:
    """The backbone: attention by content only."""
    if variant not in GRIDS:
        raise ValueError(f'compare variant "{variant}": expected none, "cifar", "text" or "tiny"')
    if variant == "text":
        config = common_bert.get_config("bert_tiny", "none")
        # Pieces of a few letters, because their order matters most: its effect shows after few updates.
        config.data.update(vocabulary_size=512, length=40)
        config.model.update(embedding_dim=64, width=64, num_blocks=2)
        config.model.block.mlp_dim = 256
        config.train.update(total_steps=1000, batch_size=32, checkpoint_steps=0)
        config.optimizer.learning_rate = 2e-3
        config.optimizer.schedule.warmup_steps = 200
    else:
        config = common.apply_variant(common.get_config(), "quick" if variant == "cifar" else "digits")
        if variant == "tiny":
            config = common.apply_variant(config, variant)
            config.data.pool = 2
        change(config, {common.TERMS: {"content": part(Content)}} | common.NO_SPAN)
        if variant != "tiny":
            config.train.total_epochs = 1.0 if variant == "cifar" else 12.0
    return config


def sweep(variant: str = "") -> Plan:
    num_dims, size, reach, taps, rank = GRIDS[variant]
    kernel: dict[str, Any] = {"kernel_shape": (size,) * num_dims}
    convolution: dict[str, Any] = {"kernel_shape": (taps,) * num_dims}
    span = {common.SPAN: part(GaussianSpan)}
    window = {common.SPAN: part(WindowSpan, half_span=(reach,) * num_dims)}
    # Word embeddings start with a standard deviation of .02. Only when multiplied are they as large as positions.
    heard: dict[str, Any] = {"model.embedding_scale": 50.0} if variant == "text" else {}
    backbone = get_config(variant).model.block.attention
    own: dict[str, Any] = {"kernel_init": "normal"} if variant == "text" else {}

    def only(**terms: ConfigDict) -> dict[str, Any]:
        return {common.TERMS: terms}

    def terms(**more: ConfigDict) -> dict[str, Any]:
        return only(content=part(Content), **more)

    def biased(encoding: ConfigDict) -> dict[str, Any]:
        return {common.TERMS: common.relative_terms(encoding)}

    def added(positions: ConfigDict) -> dict[str, Any]:
        return {"model.positions": positions} | heard

    def mixer(name: str, positions: type = SinusoidalPositions) -> dict[str, Any]:
        sizes = {"context": size // 2, "layer_norm_epsilon": 1e-12 if variant == "text" else 1e-5}
        mixed = mixing(name, backbone.num_heads, backbone.dropout_rate, own_positions=True, **sizes)
        return {common.ATTENTION: mixed} | added(part(positions))

    def value(values: ConfigDict) -> dict[str, Any]:
        return {f"{common.ATTENTION}.values": values}

    sinusoids, rotary = part(SinusoidalEncoding), only(rotary_content=part(RotaryContent))
    encodings = part(KernelEncoding, **kernel)
    fixed = part(RelativeBias, **kernel)
    dynamic = part(Positional, encoding=encodings)
    depthwise = part(PlusDepthwise, convolution=part(DepthwiseConvolution, **convolution))
    convolved = part(ConvolutionalProjections, convolved=("query", "key"), **convolution, **own)
    treatments = [
        Treatment("none", "no positions"),
        # Alfons 2022, Table 1, row by row.
        Treatment("gehring", "learned vectors, added (Gehring 2017)", added(part(LearnedPositions))),
        Treatment("vaswani", "sinusoids, added (Vaswani 2017)", added(part(SinusoidalPositions))),
        Treatment(
            "shaw",
            "learned, keys and values (Shaw 2018)",
            terms(dynamic_convolution=dynamic) | value(part(PlusRelative, encoding=encodings)),
        ),
        Treatment(
            "music_transformer",
            "learned, of every head (Huang 2018)",
            terms(positional=part(Positional, encoding=part(LearnedEncoding))),
        ),
        Treatment(
            "ramachandran",
            "by dimension, in a window (Ramachandran 2019)",
            terms(positional=part(Positional, encoding=part(AxialEncoding))) | window,
        ),
        Treatment(
            "transformer_xl",
            "sinusoids, u and v (Transformer-XL 2019)",
            biased(part(SinusoidalEncoding, use_bias=False)),
        ),
        Treatment("zhao", "network of scores and offsets (Zhao 2020)", only(score_network=part(ScoreNetwork))),
        Treatment("fourier_features", "learned Fourier features, added (Li 2021)", added(part(FourierPositions))),
        Treatment("baseline", "sinusoids with bias, u and v (baseline of Alfons 2022)", biased(sinusoids)),
        Treatment("siren", "SIREN, u and v (Alfons 2022)", biased(part(SirenEncoding))),
        Treatment("siren_span", "SIREN, u and v, learned span (Alfons 2022)", biased(part(SirenEncoding)) | span),
        # Methods in common use today.
        Treatment("rope", "RoPE, axial", only(rotary_content=part(RotaryContent, base=100.0))),
        Treatment("rope_1d", "RoPE, of the row-major order", rotary | {"data.layout": "1d"}),
        Treatment("alibi", "ALiBi", terms(linear_bias=part(LinearBias))),
        Treatment("relative_bias", "a number an offset (T5)", terms(fixed_convolution=fixed)),
        # Chang 2021.
        Treatment("composite", "composite", terms(fixed_convolution=fixed, dynamic_convolution=dynamic)),
        Treatment("depthwise", f"depthwise convolution of {taps} added", value(depthwise)),
        Treatment(
            "convolutional_qk",
            f"queries and keys by convolutions of {taps}",
            {f"{common.ATTENTION}.projections": convolved},
        ),
        # Fan 2025.
        Treatment("translution", "Translution", value(part(Translution))),
        Treatment("low_rank", "low-rank Translution", value(part(LowRankTranslution, rank=rank))),
        Treatment("general", "general Translution", value(common_vit.general())),
        Treatment("relative_content", "relative queries and keys", only(relative_content=part(RelativeContent))),
        # Schmidt 2023. As there, positions are also added to the inputs.
        Treatment("aposnet", "aPosNet", mixer("aposnet")),
        Treatment("rposnet", "rPosNet", mixer("rposnet", LearnedPositions)),
        Treatment("lightconv", "LightConv", mixer("lightconv")),
        Treatment("gaussiannet", "GaussianNet", mixer("gaussian")),
        Treatment("linearnet", "LinearNet", mixer("linear")),
        Treatment("glinearnet", "gLinearNet", mixer("glinear")),
        Treatment("fouriernet", "FourierNet", mixer("fourier")),
    ]
    if variant == "text":  # which has one dimension
        treatments = [each for each in treatments if each.name not in ("rope", "rope_1d")]
        treatments.append(Treatment("rope", "RoPE", rotary))
    better, more = ("lower", "less") if variant == "text" else ("higher", "greater")
    judged = f"gives a {better} {'loss' if variant == 'text' else 'accuracy'} than"
    hypotheses = [
        Hypothesis(f"Adding sinusoids to the inputs {judged} no positions", "vaswani", "none", more),
        Hypothesis(f"RoPE {judged} adding sinusoids to the inputs", "rope", "vaswani", more),
        Hypothesis(f"A SIREN {judged} sinusoids", "siren", "baseline", more),
        Hypothesis("RoPE and SIREN differ", "rope", "siren"),
    ]
    if variant != "text":
        hypotheses.append(Hypothesis(f"RoPE along both dimensions {judged} RoPE of the order", "rope", "rope_1d", more))
    judged_by: dict[str, Any] = {"response": "loss", "epoch": "last"} if variant == "text" else {}
    return Plan(
        "Which way of telling attention about positions is best, and what does it cost?",
        tuple(dataclasses.replace(each, family=FAMILY_OF[each.name]) for each in treatments),
        tuple(hypotheses),
        seeds=PAPER_SEEDS[:3],
        **judged_by,
    )
