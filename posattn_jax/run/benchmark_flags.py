"""The flags of --mode=benchmark, apart from what they choose: told without loading what a benchmark needs."""

from absl import flags

NAMES = ("implementations", "dtypes", "batch_sizes", "sigmas", "steps", "repeats", "seconds", "memory_limit_gib")
NAMES += ("data", "trace")


def define(values: flags.FlagValues) -> None:
    """Adds them to these."""
    own = {"flag_values": values}
    flags.DEFINE_list("implementations", ["auto", "dense"], "Of a benchmark: layouts of attention.", **own)
    flags.DEFINE_list("dtypes", None, "Values of model.dtype; by default the config's.", **own)
    flags.DEFINE_list("batch_sizes", None, "Values of train.batch_size; by default the config's.", **own)
    flags.DEFINE_list("sigmas", None, "Values of the span's initial_sigma; by default the config's.", **own)
    flags.DEFINE_integer("steps", 10, "Updates of a timed run.", lower_bound=1, **own)
    flags.DEFINE_integer("repeats", 3, "Timed runs of each, fewer where --seconds is short.", lower_bound=1, **own)
    flags.DEFINE_float("seconds", 600, "To spend on all timed runs, though at least three each.", **own)
    flags.DEFINE_float("memory_limit_gib", 8, "Layouts that need more temporary memory are skipped.", **own)
    flags.DEFINE_enum("data", "made", ["made", "read"], "Random pixels, or the config's data set.", **own)
    flags.DEFINE_string("trace", None, "A folder that keeps a profile of each, for Perfetto.", **own)
