"""Shared by the configs: Table 4 of Alfons 2022 as the default, and variants that make it smaller."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict, FieldReference

from posattn_jax import (
    Classifier,
    Content,
    ContentBias,
    EncoderBlock,
    GaussianSpan,
    LinearProjections,
    Positional,
    PositionalBias,
    PositionalSelfAttention,
    RampSpan,
    SinusoidalEncoding,
    SirenEncoding,
    WindowSpan,
)
from posattn_jax.analysis.plan import PAPER_SEEDS, Hypothesis, Plan, Printed, Treatment
from posattn_jax.config.parts import part
from posattn_jax.config.saved import completed, settable
from posattn_jax.data.images.image_sets import Images
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json
from posattn_jax.tasks.classification import Classification
from posattn_jax.train.optimizer import Adam
from posattn_jax.train.settings import Settings
from posattn_jax.train.sharding import MeshAxes

ATTENTION = "model.block.attention"
SPAN, TERMS = f"{ATTENTION}.span", f"{ATTENTION}.terms"
ENCODING = f"{TERMS}.positional.encoding"
NO_SPAN: dict[str, Any] = {SPAN: None}
NOT_TRAINED = {"task.span_penalty": 0.0, "optimizer.span_learning_rate": 0.0}  # no span's width


def get_config() -> ConfigDict:
    """CIFAR-10 in two dimensions with SIREN encoding and a learned span: the paper's model and training."""
    config = ConfigDict()
    config.seed = 9188  # for the split, initialisation, dropout and order; the paper's: 9188 2755 361 1321 833
    config.cache_dir = "data/cache"  # for compiled programs, tokenizers and token ids
    # Parts: their fields are those of their classes, whose docstrings explain them.
    config.data = part(Images, name="cifar10")
    config.task = part(Classification)
    config.model = classifier()
    config.train = part(Settings, total_epochs=80.0, batch_size=20, accumulation_steps=2)
    config.optimizer = part(Adam, learning_rate=1e-3)
    config.mesh = part(MeshAxes)
    return config


def first_word(variant: str, known: Sequence[str]) -> tuple[str, str]:
    """The first word of a variant, if it is known, else the first that is; and the rest of the variant."""
    word, _, rest = variant.partition(",")
    return (word, rest) if word in known else (known[0], variant)


def of_run(folder: str) -> ConfigDict:
    """The config of a run that another starts from. Raises InputError if there is no such run."""
    saved = read_json(pathlib.Path(folder, "config.json"))
    if saved is None:
        raise InputError(f"from={folder}: no run there (it has no config.json)")
    return settable(completed(saved))


def classifier() -> ConfigDict:
    """The paper's model, with SIREN and span."""
    dropout_rate = FieldReference(0.1)
    attention = part(
        PositionalSelfAttention,
        num_heads=8,
        terms=relative_terms(part(SirenEncoding)),
        span=part(GaussianSpan),
        projections=part(LinearProjections),
    )
    return part(
        Classifier,
        width=64,
        num_blocks=6,
        block=part(EncoderBlock, attention=attention, mlp_dim=128, dropout_rate=dropout_rate),
        dropout_rate=dropout_rate,
        dtype="float32",
        param_dtype="float32",
    )


def relative_terms(encoding: ConfigDict) -> ConfigDict:
    """The terms of the paper, with the given encoding."""
    return ConfigDict(
        {
            "content": part(Content),
            "positional": part(Positional, encoding=encoding),
            "content_bias": part(ContentBias),
            "positional_bias": part(PositionalBias),
        }
    )


def apply_variant(config: ConfigDict, variant: str) -> ConfigDict:
    """Makes `config` smaller: "" (as is), "quick" (8x8, 3 blocks), "half" (16x16), "digits" (8x8), "tiny" (tests)."""
    match variant:
        case "":
            pass
        case "digits":
            config.data.name = "digits"
            config.model.num_blocks = 3
            config.train.total_epochs = 15.0
        case "quick":
            config.data.pool = 4
            config.model.num_blocks = 3
            config.train.total_epochs = 10.0
        case "half":
            config.data.pool = 2
        case "tiny":
            config.data.pool = 8
            config.model.num_blocks = 1
            config.model.width = 8
            config.model.block.attention.num_heads = 2
            config.model.block.mlp_dim = 16
            config.train.total_epochs = 0.0
            config.train.total_steps = 2
        case _:
            raise ValueError(f'config variant "{variant}": expected none, "quick", "half", "digits" or "tiny"')
    return config


def same_omegas(name: str, omega: float, siren: str = ENCODING) -> Treatment:
    """A treatment: a SIREN, at the path `siren`, with the same omega in all its layers."""
    return Treatment(name, f"both omegas {omega:g}", {f"{siren}.omega": omega, f"{siren}.omega_initial": omega})


def learned_ramp(width: float) -> dict[str, Any]:
    """The fields of a ramp that learns, by .2 % of its width in an update of Adam."""
    span = part(RampSpan, initial_width=width)
    return {SPAN: span, "task.span_penalty": 0.0, "optimizer.span_learning_rate": 2e-3}


def ramp_and_rivals(width: float, *reaches: int) -> tuple[Treatment, ...]:
    """A learned ramp; no span; and windows of `reaches`."""

    def window(reach: int) -> Treatment:
        label = f"window of {reach} {'place' if reach == 1 else 'places'} to each side"
        fields = NOT_TRAINED | {SPAN: part(WindowSpan, half_span=(reach, reach))}
        return Treatment(f"window_{reach}", label, fields)

    return (
        Treatment("ramp", "ramp, no penalty", learned_ramp(width)),
        Treatment("none", "no span", NOT_TRAINED | NO_SPAN),
        *map(window, reaches),
    )


def span_paper_sweep(num_seeds: int = 5) -> Plan:
    """Alfons 2022: the seven treatments of section 4.2, as changes of `get_config`.

    The hypotheses are the five that the paper tests, and one that its Tables 5 and 6 show without a test: accuracy is
    higher in two dimensions than in one. With more than the paper's five seeds, only the two treatments of Table 5 have
    them all. By the paper's standard deviations they need 12 for a power of 80 % (of one uncorrected test).
    """
    of_five = functools.partial(Treatment, num_seeds=5 if num_seeds > 5 else None)
    sequence = {"data.layout": "1d"}
    no_span, no_mask = NO_SPAN, {f"{SPAN}.threshold": 0.0}
    sinusoids = {ENCODING: part(SinusoidalEncoding), **no_span}
    treatments = (
        Treatment("baseline_1d", "1-D sinusoids (baseline)", sequence | sinusoids, Printed(0.7624, 0.7493, 0.01065)),
        Treatment("siren_1d", "1-D SIREN", sequence | no_span, Printed(0.7562, 0.7269, 0.02311)),
        of_five("gaussian_1d", "1-D SIREN, span without mask", sequence | no_mask, Printed(0.7325, 0.7094, 0.02158)),
        of_five("span_1d", "1-D SIREN, span", sequence, Printed(0.7352, 0.7168, 0.01776)),
        of_five("siren_2d", "2-D SIREN", no_span, Printed(0.8134, 0.7991, 0.008688)),
        of_five("gaussian_2d", "2-D SIREN, span without mask", no_mask, Printed(0.8130, 0.8026, 0.01579)),
        of_five("span_2d", "2-D SIREN, span", {}, Printed(0.8130, 0.8095, 0.003782)),
    )
    higher = "{}: SIREN encodings give a higher accuracy than sinusoids"
    lower = "{}: modulating the scores by a learned Gaussian lowers the accuracy"
    masked = "{}: leaving out what lies outside the learned span gives a higher accuracy than only modulating it"
    hypotheses = (
        Hypothesis(higher.format("1-D"), "siren_1d", "baseline_1d", "greater", 0.0995),
        Hypothesis(lower.format("1-D"), "gaussian_1d", "siren_1d", "less", 0.2511),
        Hypothesis(lower.format("2-D"), "gaussian_2d", "siren_2d", "less", 0.6823),
        Hypothesis(masked.format("1-D"), "span_1d", "gaussian_1d", "greater", 0.5697),
        Hypothesis(masked.format("2-D"), "span_2d", "gaussian_2d", "greater", 0.3882),
        Hypothesis("SIREN encodings give a higher accuracy in 2-D than in 1-D", "siren_2d", "siren_1d", "greater"),
    )
    question = "What do SIREN encodings and a learned span do to the accuracy, in one and in two dimensions?"
    paper_note = (
        "The paper states a power of 50.25% with 5 runs of each treatment, and 80.4% with 9, for all comparisons. Both "
        "follow from an effect size |m1 - m2| / std(m1, m2), which is the square root of 2 for any two means. With the "
        "pooled standard deviation of the runs every comparison has a power of its own, mostly far lower."
    )
    return Plan(
        question,
        treatments,
        hypotheses,
        seeds=(*PAPER_SEEDS, *range(1, 8))[:num_seeds],
        source="Alfons 2022, CIFAR-10 at 32 x 32",
        paper_note=paper_note,
    )
