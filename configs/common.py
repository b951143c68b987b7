"""What the configs share: Table 4 of Alfons 2022 as the default, and the variants that make it small.

Durations carry their unit; where steps and epochs are both there, steps win if they are not 0.
"""

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
    SinusoidalEncoding,
    SirenEncoding,
)
from posattn_jax.analysis.plan import Hypothesis, Plan, Printed, Treatment
from posattn_jax.build.parts import part

ATTENTION = "model.block.attention"
SPAN, TERMS = f"{ATTENTION}.span", f"{ATTENTION}.terms"
ENCODING = f"{TERMS}.positional.encoding"
NO_SPAN: dict[str, Any] = {SPAN: None}


def get_config() -> ConfigDict:
    """CIFAR-10 in two dimensions with SIREN encoding and a learned span: the paper's model and training."""
    config = ConfigDict()
    config.seed = 9188  # of the split, the initialisation, dropout and the order; the paper's: 9188 2755 361 1321 833

    # of images; reconstruction: a SIREN of the model's width fits sinusoids' E; masked_lm: of text; glue: of sentences;
    # translation
    config.task = "classification"

    config.data = ConfigDict()
    # digits, mnist, cifar10, cifar100 (its fine labels), moving_mnist (a digit an image), moving_mnist_clips (a moving
    # digit, whose direction is asked for), or tfds/NAME for a set that tensorflow-datasets has prepared
    config.data.name = "cifar10"
    config.data.dir = "data"
    config.data.download = False
    config.data.layout = "2d"  # or 1d: the row-major sequence of pixels; clips: 3d or 1d; points: the brightest pixels
    config.data.num_points = 128  # points: of an image, at most
    config.data.validation = "split"  # a fifth of the train part, drawn by the seed; or test: train on it all
    config.data.validation_limit = 0  # judge by the first so many of the validation part; 0: all
    config.data.pool = 1  # mean-pool height and width by this factor
    config.data.canvas = 64  # moving_mnist: height and width in pixels
    config.data.shift = "none"  # moving_mnist; or halves: training digits in the left half, test digits in the right
    config.data.seed = 0  # moving_mnist: of places and movements; the same for runs of all seeds
    config.data.frames = 8  # moving_mnist_clips
    config.data.grid_shape = (1024,)  # reconstruction, which reads no images: one to three sizes
    config.data.combine = "concat"  # reconstruction: of several dimensions; or sum

    # Of text, data.dir is a file, or a folder of .txt and .txt.gz: a sentence a line, blank lines between documents.
    config.data.validation_dir = ""  # likewise; "": a twentieth of the pairs of lines, drawn by the seed
    config.data.cache_dir = "data/cache"  # of tokenizers, of texts as token ids, and of compiled programs
    config.data.vocabulary_size = 30004  # masked_lm: 4 special tokens included; glue: that of the pretrained run
    config.data.length = 128  # of a sequence, in tokens
    config.data.mask_share = 0.15  # masked_lm: the probability of a token to be hidden
    # glue: data.name is cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte or wnli, data.dir has the folders of its files
    config.data.malformed = "refuse"  # glue: lines of its files; translation: lines empty on one side; or skip
    # translation: data.dir has the files PART.LANGUAGE, plain or .gz, each line the translation of the other's; or
    # data.name = "tfds/NAME" is a set that tensorflow-datasets has prepared
    config.data.source = "en"
    config.data.target = "de"
    config.data.train_part = "train"
    config.data.validation_part = "val"
    config.data.validation_every = 0  # every so-manyth line of the train part, instead; 0: validation_part
    config.data.test_part = "test"
    config.data.buckets = (16, 24, 32, 48, 64, 128)  # lengths that batches are padded to; the last limits training
    config.data.fold_case = False  # whether upper case is read, and written, as lower case
    config.data.normalization = "nfkc"  # of Unicode, before subwords are made; or none: "…" stays and is not "..."
    config.data.source_vocabulary_size = 0  # of a source with subwords, and embeddings, of its own; 0: joint

    config.model = classifier()  # a part: every field is one of its class, whose docstring explains it

    config.train = ConfigDict()
    config.train.total_epochs = 80.0
    config.train.total_steps = 0
    config.train.batch_size = 20  # translation: of so many tokens
    config.train.batch_unit = "target_tokens"  # translation: tokens of the target, without padding; or places, with
    config.train.accumulation_steps = 2  # gradients are summed
    config.train.eval_batch_size = 200
    config.train.log_steps = 50
    # updates a dispatch; 0: 16 on accelerators, 1 on CPUs; 1 where spans are bounded, and for text in buckets
    config.train.dispatch_steps = 0
    config.train.resident_mib = -1  # images that take no more are device-resident; -1: 2048 on accelerators, 0 on CPUs
    config.train.eval_steps = 0  # between evaluations; 0: an epoch
    config.train.checkpoint_steps = 0  # besides the checkpoint of every evaluation
    config.train.keep_checkpoints = 1  # of so many evaluations; translation averages them: the best and following
    config.train.label_smoothing = 0.1  # translation
    config.train.pretrained = ""  # glue: the run folder to start from; {seed} in it is this run's
    config.train.bounded_spans = "auto"  # static bounds of the spans, recompiled as they change: on GPUs; or yes, no
    config.train.span_penalty = 0.0  # added to the loss, times the span's share of the grid

    config.decode = ConfigDict()  # translation
    config.decode.beam_size = 12  # 1: greedy
    config.decode.batch_size = 32  # sentences
    config.decode.extra_length = 50  # how much longer than the source a translation may be

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 1e-3
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.eps = 1e-8
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 0.0  # 0: no clipping
    config.optimizer.schedule = "constant"  # or cosine, linear, inverse_sqrt
    config.optimizer.warmup_steps = 0
    config.optimizer.warmup_epochs = 0.0

    config.mesh = ConfigDict()
    config.mesh.data = -1  # -1: what the other axes leave
    config.mesh.fsdp = 1
    config.mesh.model = 1
    config.mesh.grid = 1  # classification with a span: cuts the first dimension of the grid that attention meets
    return config


def classifier() -> ConfigDict:
    """The paper's model, of SIREN and span."""
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
    """The terms of the paper, with an encoding."""
    return ConfigDict(
        {
            "content": part(Content),
            "positional": part(Positional, encoding=encoding),
            "content_bias": part(ContentBias),
            "positional_bias": part(PositionalBias),
        }
    )


def apply_variant(config: ConfigDict, variant: str) -> ConfigDict:
    """`config` made smaller: "" (as it is), "quick" (8x8, 3 blocks), "half" (16x16), "digits" (8x8), "tiny" (tests)."""
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
    """A SIREN, at the path `siren`, with one omega in all its layers."""
    return Treatment(name, f"both omegas {omega:g}", {f"{siren}.omega": omega, f"{siren}.omega_initial": omega})


def span_paper_sweep() -> Plan:
    """Alfons 2022: the seven treatments of section 4.2, as changes of `get_config`.

    The hypotheses are the five that it tests, and one that its Tables 5 and 6 show without a test: two dimensions are
    above one.
    """
    sequence = {"data.layout": "1d"}
    no_span, no_mask = NO_SPAN, {f"{SPAN}.threshold": 0.0}
    sinusoids = {ENCODING: part(SinusoidalEncoding), **no_span}
    treatments = (
        Treatment("baseline_1d", "1-D sinusoids (baseline)", sequence | sinusoids, Printed(0.7624, 0.7493, 0.01065)),
        Treatment("siren_1d", "1-D SIREN", sequence | no_span, Printed(0.7562, 0.7269, 0.02311)),
        Treatment("gaussian_1d", "1-D SIREN, span without mask", sequence | no_mask, Printed(0.7325, 0.7094, 0.02158)),
        Treatment("span_1d", "1-D SIREN, span", sequence, Printed(0.7352, 0.7168, 0.01776)),
        Treatment("siren_2d", "2-D SIREN", no_span, Printed(0.8134, 0.7991, 0.008688)),
        Treatment("gaussian_2d", "2-D SIREN, span without mask", no_mask, Printed(0.8130, 0.8026, 0.01579)),
        Treatment("span_2d", "2-D SIREN, span", {}, Printed(0.8130, 0.8095, 0.003782)),
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
    return Plan(question, treatments, hypotheses, source="Alfons 2022, CIFAR-10 at 32 x 32", paper_note=paper_note)
