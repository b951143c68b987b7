"""What the configs share: Table 4 of Alfons 2022 as the default, and the variants that make it small.

Durations carry their unit; where steps and epochs are both there, steps win if they are not 0.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """CIFAR-10 in two dimensions with SIREN encoding and a learned span: the paper's model and training."""
    config = ConfigDict()
    config.seed = 9188  # of the split, the initialisation, dropout and the order; the paper's: 9188 2755 361 1321 833

    config.data = ConfigDict()
    config.data.name = "cifar10"  # digits, cifar10, or tfds/NAME for a set that tensorflow-datasets has prepared
    config.data.dir = "data"
    config.data.download = False
    config.data.layout = "2d"  # 1d: the row-major sequence of pixels
    config.data.validation_limit = 0  # judge by the first so many images of the validation part; 0: all
    config.data.pool = 1  # mean-pool each side by this factor

    config.model = ConfigDict()
    config.model.num_blocks = 6
    config.model.width = 64
    config.model.num_heads = 8
    config.model.mlp_dim = 128
    config.model.dropout_rate = 0.1
    config.model.attention_dropout_rate = 0.0
    config.model.norm = "post"  # or pre
    config.model.readout = "last"  # or mean, max
    config.model.terms = ("content", "positional", "content_bias", "positional_bias")
    # auto, tiled, dense, patch, window or reference; without a span and with sinusoidal encodings also factorised
    config.model.implementation = "auto"
    config.model.remat = False
    config.model.scan_layers = False
    config.model.dtype = "float32"  # of the computation; or bfloat16
    config.model.param_dtype = "float32"

    config.model.encoding = ConfigDict()
    config.model.encoding.kind = "siren"  # or sinusoidal, learned, none (which also drops the positional terms)
    config.model.encoding.num_layers = 3  # siren
    config.model.encoding.omega = 10.0  # siren
    config.model.encoding.omega_initial = 10.0  # siren
    config.model.encoding.bias_init = "zeros"  # siren; or ckconv
    config.model.encoding.learn_omega = False  # siren
    config.model.encoding.combine = "concat"  # sinusoidal in more than one dimension; or sum

    config.model.span = ConfigDict()
    config.model.span.enabled = True
    config.model.span.threshold = 0.1  # 0: no mask
    config.model.span.mode = "multiply"  # or log_add
    config.model.span.covariance = "diagonal"  # or full
    config.model.span.initial_sigma = 0.3
    config.model.span.per_head = False
    config.model.span.bounded = "auto"  # static bounds of the spans, recompiled as they change: auto: on GPUs; yes, no
    config.model.span.penalty = 0.0  # added to the loss, times the span's share of the grid

    config.train = ConfigDict()
    config.train.total_epochs = 80.0
    config.train.total_steps = 0
    config.train.batch_size = 20
    config.train.accumulation_steps = 2  # gradients are summed
    config.train.eval_batch_size = 200
    config.train.log_steps = 50
    config.train.checkpoint_steps = 0  # besides the checkpoint of every epoch

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 1e-3
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.eps = 1e-8
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 0.0  # 0: no clipping
    config.optimizer.schedule = "constant"  # or cosine, linear
    config.optimizer.warmup_steps = 0
    config.optimizer.warmup_epochs = 0.0

    config.mesh = ConfigDict()
    config.mesh.data = -1  # -1: what the other axes leave
    config.mesh.fsdp = 1
    config.mesh.model = 1
    return config


def apply_variant(config: ConfigDict, variant: str) -> ConfigDict:
    """`config` made smaller: "" (as it is), "quick" (8x8, 3 blocks), "half" (16x16), "tiny" (for tests)."""
    match variant:
        case "":
            pass
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
            config.model.num_heads = 2
            config.model.mlp_dim = 16
            config.train.total_epochs = 0.0
            config.train.total_steps = 2
        case _:
            raise ValueError(f'config variant "{variant}": expected none, "quick", "half" or "tiny"')
    return config
