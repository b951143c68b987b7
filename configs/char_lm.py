"""A language model of English characters: does a learned span pay if the length of sequences is the cost? (Ours.)

python -m posattn_jax.main --config=configs/char_lm.py --workdir=runs/char_lm --config.data.dir=FOLDER_OF_TEXT
... --mode=generate --workdir=runs/char_lm --prompt="The "
python -m posattn_jax.main --config=configs/char_lm.py --mode=sweep --workdir=runs/char_lm_sweep --workers=2 \
    --config.data.dir=FOLDER_OF_TEXT
Measured on WikiText-2's valid.txt and test.txt (2.4 MB), whose last twentieth is the validation part.
Hardware and time: one CPU core, 5 to 8 minutes with the ramp, 14 to 20 without a span. Expected: 2.04 bits a character.
"" (1,024 characters), "256", "4096", :tiny (tests); "wide" has 2 heads of 64 features, not 8 of 8: "wide,4096".
The sweep compares a Gaussian with no span and others. With "forms" it compares forms of the span: "forms",
"wide,forms". With "confirm" it tests two of its results with fresh seeds: a ramp against no span and against a window;
with "wide,confirm" the ramp with heads of 64 features, against RoPE too.
"""

from typing import Any

from ml_collections import ConfigDict

from configs.lib import common
from posattn_jax import (
    Content,
    EncoderBlock,
    FlatSpan,
    GaussianSpan,
    LanguageModel,
    LinearBias,
    LinearProjections,
    PositionalSelfAttention,
    RampSpan,
    RotaryContent,
    SirenEncoding,
    WindowSpan,
)
from posattn_jax.analysis.plan import PAPER_SEEDS, Hypothesis, Plan, Treatment
from posattn_jax.config.parts import change, part
from posattn_jax.data.text.characters import Characters
from posattn_jax.tasks.causal_lm import CausalLanguageModelling
from posattn_jax.train.optimizer import Adam
from posattn_jax.train.schedule import Cosine

LENGTHS = {"256": 256, "1024": 1024, "4096": 4096}
MEAN_REACH = 43  # mean half-span of the heads in a run of 600 updates with the learned span
RAMP_REACH = 45  # mean width of a ramp's heads at the end of the first two runs of `forms`
CLIPPED = {"optimizer.clips_spans": True}  # with the weights, as the Gaussians of the committed runs were


def get_config(variant: str = "") -> ConfigDict:
    words, length = _read(variant)
    width, num_heads = (128, 2) if "wide" in words else (64, 8)
    config = common.get_config()
    config.data = part(Characters, length=length, validation_limit=2**16 // length)
    config.task = part(CausalLanguageModelling)
    attention = part(
        PositionalSelfAttention,
        num_heads=num_heads,
        terms=common.relative_terms(part(SirenEncoding)),
        projections=part(LinearProjections),
    )
    block = part(EncoderBlock, attention=attention, mlp_dim=2 * width, norm="pre")
    config.model = part(LanguageModel, width=width, num_blocks=4, block=block, dtype="float32", param_dtype="float32")
    config.train.update(total_epochs=0.0, total_steps=3000, batch_size=4, accumulation_steps=1)
    config.train.update(eval_batch_size=4, eval_steps=250, log_steps=50)
    config.optimizer = part(Adam, learning_rate=2e-3, schedule=part(Cosine, warmup_steps=100), clip_norm=1.0)
    # The span starts small, so that its cost is low and grows only where it helps.
    change(config, _learned(RampSpan, length))
    if "tiny" in words:
        config.data.update(length=16, validation_limit=2)
        config.model.update(width=8, num_blocks=1)
        config.model.block.attention.num_heads = 2
        config.model.block.mlp_dim = 16
        config.train.update(total_steps=2, batch_size=2, eval_batch_size=2, eval_steps=0)
    return config


def _read(variant: str) -> tuple[list[str], int]:
    """The words of a variant, and the characters of a sequence."""
    words = [word for word in variant.split(",") if word]
    lengths = [LENGTHS[word] for word in words if word in LENGTHS] or [1024]
    if set(words) - {*LENGTHS, "wide", "tiny", "forms", "confirm"} or len(lengths) > 1:
        allowed = f"expected one of {', '.join(LENGTHS)}, and wide or not, and forms or confirm or neither; or tiny"
        raise ValueError(f'config variant "{variant}": {allowed}')
    return words, lengths[0]


def sweep(variant: str = "") -> Plan:
    """A learned Gaussian against no span, common positions, a window of its mean half-span, and the paper's span.

    With "forms": forms of a learned span, against windows and against the Gaussian whose gradients were clipped.
    With "confirm": a ramp against no span and against a window; with "wide,confirm" against RoPE too.
    """
    words, length = _read(variant)
    if "forms" in words:
        return forms(length)
    if "confirm" in words:
        return confirm_wide(length) if "wide" in words else confirm(length)
    content, none = part(Content), common.NO_SPAN
    paper = CLIPPED | {common.SPAN: part(GaussianSpan, initial_sigma=0.3), "optimizer.span_learning_rate": 0.0}
    return Plan(
        f"Does a learned span pay on text of {length:,} characters?",
        (
            Treatment("learned", "learned span", _gaussian(length) | CLIPPED),
            Treatment("none", "no span", none),
            Treatment("rope", "RoPE, no span", _rope(), num_seeds=3),
            Treatment(
                "alibi",
                "ALiBi, no span",
                none | {common.TERMS: {"content": content, "bias": part(LinearBias)}},
                num_seeds=3,
            ),
            Treatment(
                "window",
                "window of the mean reach",
                {common.SPAN: part(WindowSpan, half_span=(MEAN_REACH,))},
                num_seeds=3,
            ),
            Treatment("paper", "span as in the paper: sigma .3, multiplied", paper, num_seeds=3),
        ),
        (
            Hypothesis("A learned span is not worse than none by .02 bits", "learned", "none", "less", margin=0.02),
            Hypothesis("A learned span is not worse than RoPE by .02 bits", "learned", "rope", "less", margin=0.02),
            Hypothesis("A learned span is better than a window of its mean reach", "learned", "window", "less"),
            Hypothesis("A learned span is better than the paper's", "learned", "paper", "less"),
        ),
        seeds=PAPER_SEEDS,
        response="bits",
        epoch="last",
    )


def _gaussian(length: int) -> dict[str, Any]:
    """A sigma of 20 places. With the learning rate of other parameters it would shrink before much is learned."""
    unit = 1024 / length
    span = part(GaussianSpan, initial_sigma=0.02 * unit, mode="log_add", per_head=True)  # distant keys fade out
    return {common.SPAN: span, "optimizer.span_learning_rate": 2e-4 * unit}


def _learned(form: type, length: int, reach: int = 30, rate: float = 4e-3) -> dict[str, Any]:
    """A span of this form. Adam changes its width by .4 % in an update."""
    span = part(form, initial_width=reach / (length - 1))
    return {common.SPAN: span, "optimizer.span_learning_rate": rate}


def _window(reach: int) -> dict[str, Any]:
    return {common.SPAN: part(WindowSpan, half_span=(reach,))}


def _rope() -> dict[str, Any]:
    return common.NO_SPAN | {common.TERMS: {"rotary": part(RotaryContent)}}


def forms(length: int) -> Plan:
    """Forms of a learned span. A width starts at 30 places."""
    gaussian = _gaussian(length)
    frozen = _learned(RampSpan, length, RAMP_REACH, 1e-9)  # all updates together change a width by 3e-6 of it
    return Plan(
        f"Is a learned span as good as the best window on text of {length:,} characters?",
        (
            Treatment("ramp", "ramp"),
            Treatment("window", "window of 43 places", _window(MEAN_REACH)),
            Treatment("gaussian", "Gaussian, clipped with the weights", gaussian | CLIPPED),
            Treatment("outside", "Gaussian, not clipped", gaussian, num_seeds=5),
            Treatment("flat", "flat top", _learned(FlatSpan, length), num_seeds=5),
            Treatment("frozen", "ramp that stays at 45 places", frozen, num_seeds=5),
            Treatment("wider", "window of 64 places", _window(64), num_seeds=5),
            Treatment("none", "no span", common.NO_SPAN, num_seeds=5),
            Treatment("rope", "RoPE, no span", _rope(), num_seeds=3),
        ),
        (
            Hypothesis("A ramp is not worse than the window by .005 bits", "ramp", "window", "less", margin=0.005),
            Hypothesis("A ramp is better than the Gaussian by .01 bits", "ramp", "gaussian", "less", margin=-0.01),
            Hypothesis("A ramp is better than no span by .01 bits", "ramp", "none", "less", margin=-0.01),
            Hypothesis("A Gaussian is better where it is not clipped", "outside", "gaussian", "less"),
            Hypothesis("A flat top is not worse than the window by .005 bits", "flat", "window", "less", margin=0.005),
            Hypothesis("A ramp is not worse than the wider one by .005 bits", "ramp", "wider", "less", margin=0.005),
            Hypothesis("A ramp is better than one that stays at the mean of its widths", "ramp", "frozen", "less"),
        ),
        seeds=(*PAPER_SEEDS, 1, 2, 3, 4, 5),
        response="bits",
        epoch="last",
    )


def confirm(length: int) -> Plan:
    """Two results of `forms` that were not shown, again with fresh seeds.

    With the deviations seen there (ramp .005, window .008, no span .009 bits) and its differences (.001, .017), the
    power of the two tests is .94 and .8, as simulated.
    """
    return Plan(
        f"Is a ramp better than no span, and as good as a window, on text of {length:,} characters?",
        (
            Treatment("ramp", "ramp"),
            Treatment("window", "window of 43 places", _window(MEAN_REACH)),
            Treatment("none", "no span", common.NO_SPAN, num_seeds=6),
        ),
        (
            Hypothesis("A ramp is better than no span", "ramp", "none", "less"),
            Hypothesis("A ramp is not worse than the window by .005 bits", "ramp", "window", "less", margin=0.005),
        ),
        seeds=tuple(range(11, 27)),
        response="bits",
        epoch="last",
    )


def confirm_wide(length: int) -> Plan:
    """A ramp with heads of 64 features, with which a Gaussian was .012 bits above no span and .016 above RoPE."""
    return Plan(
        f"With heads of 64 features, is a ramp as good as no span, a window and RoPE on text of {length:,} characters?",
        (
            Treatment("ramp", "ramp"),
            Treatment("window", "window of 43 places", _window(MEAN_REACH)),
            Treatment("none", "no span", common.NO_SPAN),
            Treatment("rope", "RoPE, no span", _rope()),
        ),
        (
            Hypothesis("A ramp is not worse than no span by .01 bits", "ramp", "none", "less", margin=0.01),
            Hypothesis("A ramp is not worse than the window by .005 bits", "ramp", "window", "less", margin=0.005),
            Hypothesis("A ramp is not worse than RoPE by .01 bits", "ramp", "rope", "less", margin=0.01),
        ),
        seeds=PAPER_SEEDS,
        response="bits",
        epoch="last",
    )
