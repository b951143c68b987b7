"""Every position method and mixer in the same backbone, with the same budget: which one, and what does it cost?

python -m posattn_jax.main --mode=sweep --config=configs/compare.py --workdir=runs/compare --workers=2
python -m posattn_jax.sweeps.costs --config=configs/compare.py --workdir=runs/compare
python -m posattn_jax.main --mode=report --workdir=runs/compare
python -m posattn_jax.main --config=configs/compare.py --workdir=runs/none   # the backbone, which knows no positions
Hardware and time: "" 30 treatments x 3 seeds of 12 epochs, 3 hours of one CPU core: 35 to 110 s each, Translution and
its forms 5 to 13 minutes. Expected best-epoch validation accuracy, means of three seeds (docs/choosing.md): Translution
.981, SIREN with a span .977, RoPE .969, sinusoids .946; added to the inputs .44 to .86; no positions .266. :cifar 4
hours, 45 to 140 s a run, Translution and its forms 7 to 17 minutes; Translution .482, RoPE .427, SIREN with a span
.423, no positions .320. :text 29 x 3 runs of 30 to 60 s; validation loss SIREN with a span 3.75, RoPE 4.05, no
positions 4.81.
"" (digits), :cifar (CIFAR-10 at 8x8, 1 of the 10 epochs of configs/cifar2d_span.py:quick), :text (masked language
modelling of pieces of a few letters: 1,000 updates of 2 blocks of width 64; judged by the loss), :tiny (digits, tests).
"""

from typing import Any

from ml_collections import ConfigDict

from configs import common, common_bert
from posattn_jax.analysis.plan import PAPER_SEEDS, Hypothesis, Plan, Treatment

# How many dimensions the grid has, the offsets of a kernel of scores along each (all, but of text), how far a local
# window reaches, the kernel of convolutions, which take long on a CPU, and the rank of low-rank values: less than the
# features of a head, 8 of images and 16 of text.
GRIDS = {"": (2, 15, 3, 3, 2), "cifar": (2, 15, 3, 3, 2), "text": (1, 17, 8, 17, 8), "tiny": (2, 7, 1, 3, 2)}


def get_config(variant: str = "") -> ConfigDict:
    """The backbone: attention by content alone."""
    if variant not in GRIDS:
        raise ValueError(f'compare variant "{variant}": expected none, "cifar", "text" or "tiny"')
    num_dims, kernel, *_ = GRIDS[variant]
    if variant == "text":
        config = common_bert.get_config("bert_tiny", "none")
        # Pieces of a few letters, whose order tells most: few updates show it.
        config.data.update(vocabulary_size=512, length=40)
        config.model.update(embedding_dim=64, width=64, mlp_dim=256, num_blocks=2)
        config.train.update(total_steps=1000, batch_size=32, checkpoint_steps=0)
        config.optimizer.update(learning_rate=2e-3, warmup_steps=200)
    else:
        config = common.apply_variant(common.get_config(), "quick" if variant == "cifar" else "digits")
        if variant == "tiny":
            config = common.apply_variant(config, variant)
            config.data.pool = 2
        config.model.terms = ("content",)
        config.model.encoding.kind = "none"
        config.model.span.enabled = False
        if variant != "tiny":
            config.train.total_epochs = 1.0 if variant == "cifar" else 12.0
    config.model.kernel.shape = (kernel,) * num_dims
    config.model.mixer.context = kernel // 2
    return config


def sweep(variant: str = "") -> Plan:
    num_dims, _, reach, taps, rank = GRIDS[variant]
    relative = {"model.terms": ("content", "positional")}
    biased = {"model.terms": ("content", "positional", "content_bias", "positional_bias")}
    sinusoids = {"model.encoding.kind": "sinusoidal"}
    siren = biased | {"model.encoding.kind": "siren"}
    rotary = {"model.terms": ("rotary_content",)}
    window = {"model.span.enabled": True, "model.span.kind": "window", "model.span.half_span": (reach,) * num_dims}
    convolution = {"model.kernel.shape": (taps,) * num_dims}
    # Words are drawn with a standard deviation of .02: as large as positions only when they are multiplied.
    heard: dict[str, Any] = {"model.embedding_scale": 50.0} if variant == "text" else {}

    def terms(*names: str) -> dict[str, Any]:
        return {"model.terms": ("content", *names)}

    def added(kind: str) -> dict[str, Any]:
        return {"model.positions.kind": kind} | heard

    def mixer(name: str, positions: str = "sinusoidal") -> dict[str, Any]:
        return {"model.mixer.encoder": name} | added(positions)

    def value(kind: str) -> dict[str, Any]:
        return {"model.value.kind": kind}

    treatments = [
        Treatment("none", "no positions"),
        # Alfons 2022, Table 1, row by row.
        Treatment("gehring", "learned vectors, added (Gehring 2017)", added("learned")),
        Treatment("vaswani", "sinusoids, added (Vaswani 2017)", added("sinusoidal")),
        Treatment(
            "shaw", "learned, keys and values (Shaw 2018)", terms("dynamic_convolution") | value("plus_relative")
        ),
        Treatment(
            "music_transformer", "learned, of every head (Huang 2018)", relative | {"model.encoding.kind": "learned"}
        ),
        Treatment(
            "ramachandran",
            "by dimension, in a window (Ramachandran 2019)",
            relative | window | {"model.encoding.kind": "axial"},
        ),
        Treatment(
            "transformer_xl",
            "sinusoids, u and v (Transformer-XL 2019)",
            biased | sinusoids | {"model.encoding.use_bias": False},
        ),
        Treatment("zhao", "network of scores and offsets (Zhao 2020)", {"model.terms": ("score_network",)}),
        Treatment("fourier_features", "learned Fourier features, added (Li 2021)", added("fourier")),
        Treatment("baseline", "sinusoids with bias, u and v (baseline of Alfons 2022)", biased | sinusoids),
        Treatment("siren", "SIREN, u and v (Alfons 2022)", siren),
        Treatment("siren_span", "SIREN, u and v, learned span (Alfons 2022)", siren | {"model.span.enabled": True}),
        # What is used today.
        Treatment("rope", "RoPE, axial", rotary | {"model.rotary_base": 100.0}),
        Treatment("rope_1d", "RoPE, of the row-major order", rotary | {"data.layout": "1d"}),
        Treatment("alibi", "ALiBi", terms("linear_bias")),
        Treatment("relative_bias", "a number an offset (T5)", terms("fixed_convolution")),
        # Chang 2021.
        Treatment("composite", "composite", terms("fixed_convolution", "dynamic_convolution")),
        Treatment("depthwise", f"depthwise convolution of {taps} added", value("plus_depthwise") | convolution),
        Treatment(
            "convolutional_qk",
            f"queries and keys by convolutions of {taps}",
            convolution | {"model.convolved": ("query", "key")},
        ),
        # Fan 2025.
        Treatment("translution", "Translution", value("translution")),
        Treatment("low_rank", "low-rank Translution", value("low_rank") | {"model.value.rank": rank}),
        Treatment("general", "general Translution", value("general")),
        Treatment("relative_content", "relative queries and keys", {"model.terms": ("relative_content",)}),
        # Schmidt 2023; positions are added to the inputs too, as there.
        Treatment("aposnet", "aPosNet", mixer("aposnet")),
        Treatment("rposnet", "rPosNet", mixer("rposnet", "learned")),
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
        tuple(treatments),
        tuple(hypotheses),
        seeds=PAPER_SEEDS[:3],
        **judged_by,
    )
