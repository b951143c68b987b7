"""Trains a run or a sweep of runs, evaluates and uses trained models, and reports the results of a sweep.

  python -m posattn_jax.main --config=configs/digits.py --workdir=runs/digits [--mode=train|evaluate]
                             [--seeds=9188,2755] [--treatment=siren_2d] [--wandb=PROJECT]
                             [--config.train.total_epochs=2 ...]
  python -m posattn_jax.main --mode=evaluate --workdir=runs/digits [--config.data.pool=2 ...]
  python -m posattn_jax.main --mode=sweep --config=configs/digits.py --workdir=runs/sweep [--workers=2]
                             [--executor=local|slurm --slurm=partition=gpu,account=me --timeout_minutes=600]
                             [--treatments=siren_2d,span_2d] [--seeds=9188,2755 --vmap_seeds=2]
                             [--finished=docs/results/digits] [--check]
                             [--config.train.total_epochs=2 ...]
  python -m posattn_jax.main --mode=report --workdir=runs/sweep [MORE_FOLDERS_OF_THE_SWEEP ...]
  python -m posattn_jax.main --mode=translate --workdir=runs/translation < input.txt > output.txt
                             [--config.task.decoding.beam_size=1]
  python -m posattn_jax.main --mode=generate --workdir=runs/char_lm --prompt="The " [--length=500]
                             [--temperature=.8 --top_k=20 --seed=1]
  python -m posattn_jax.main --mode=predict --workdir=runs/digits FILE_OR_FOLDER ... [--top=3]
  python -m posattn_jax.main --mode=predict --workdir=runs/rte < sentences.tsv
  python -m posattn_jax.main --mode=explain --workdir=runs/digits [FILE_OR_FOLDER ...] [--layers=1,3] [--heads=2]
  python -m posattn_jax.main --mode=export --workdir=runs/digits [--format=stablehlo|hugging_face|timm|big_vision]
  python -m posattn_jax.main --mode=import --workdir=runs/imported FILE_OR_FOLDER [--num_heads=3] [--num_sentences=2]
  python -m posattn_jax.main --mode=benchmark --config=configs/cifar2d_span.py:quick --workdir=runs/benchmark
                             [--implementations=auto,dense --dtypes=float32,bfloat16 --trace=runs/benchmark/trace ...]

If the package is installed, `posattn` is the same as `python -m posattn_jax.main`. To train one run with several
processes, use launch/local.sh or launch/slurm.sh, or --distributed if jax finds the processes itself.
--help lists the modes and the main options, --mode=MODE --help those of a mode, --helpfull all options.
--mode=configs lists the configs that come with the package, --version prints its version.
A run folder is data: its config.json names classes of posattn_jax only. If it has classes of your own, name their
modules: --modules=my_package.layers. The command then imports these.
The same command continues a run or a sweep that was stopped. Exit codes: 0 done, 2 wrong input, 1 failed while
running, 130 and 143 stopped by Ctrl-C and SIGTERM after saving.
"""

import errno
import io
import logging
import os
import pathlib
import re
import signal
import sys
import threading
from importlib import metadata
from typing import Any, cast

from absl import flags
from absl import logging as absl_logging
from ml_collections import ConfigDict, config_flags

from posattn_jax.system import command_line, extras, short_help
from posattn_jax.system.errors import InputError, RunError
from posattn_jax.system.files import OF_THE_PLACE, config_of_run
from posattn_jax.system.short_help import Mode

_CONFIG = config_flags.DEFINE_config_file("config", None, "The config file, with a variant: configs/digits.py:tiny.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Run folder; training creates it, or continues the run in it.")
RUN, CONFIG = "the folder of a trained run", "a config file and a folder for the run"
MODES = {
    "train": Mode(
        "train a model, or continue its run (the default)",
        "--config=FILE[:VARIANT] --workdir=FOLDER",
        CONFIG,
        {"config.FIELD": "A field of the config: --config.train.total_epochs=2.", "treatment": "", "seeds": ""},
        "--config=configs/digits.py --workdir=runs/digits --config.train.total_epochs=2",
    ),
    "evaluate": Mode(
        "evaluate a trained run, also on a grid of another size",
        "--workdir=RUN",
        RUN,
        {
            "config.data.pool": "Another pooling of the pixels, and so another grid.",
            "config.data.height": "Another height of the images of a folder; likewise config.data.width.",
            "config.train.eval_batch_size": "The number of examples at a time.",
        },
        "--workdir=runs/digits --config.data.pool=1",
    ),
    "translate": Mode(
        "translate the lines of standard input",
        "--workdir=RUN",
        f"{RUN} of translation, and text on its standard input",
        {
            "config.task.decoding.beam_size": "The number of hypotheses of the beam search.",
            "config.task.decoding.batch_size": "The number of sentences at a time.",
            "config.task.decoding.extra_length": "How many tokens longer than its source a translation may be.",
        },
        "--workdir=runs/nmt < input.txt > output.txt",
    ),
    "generate": Mode(
        "generate text with a language model",
        "--workdir=RUN",
        f"{RUN} of a language model",
        {"prompt": "", "length": "", "temperature": ""},
        '--workdir=runs/char_lm --prompt="The " --length=200',
    ),
    "predict": Mode(
        "classify files, or sentences from standard input",
        "--workdir=RUN FILE_OR_FOLDER ...",
        f"{RUN}, and files or sentences to classify",
        {"top": "", "modules": "", "debug": ""},
        "--workdir=runs/digits picture.png --top=3",
    ),
    "explain": Mode(
        "show what a trained run attends to, as a page of pictures",
        "--workdir=RUN [FILE_OR_FOLDER ...]",
        RUN,
        {"layers": "", "heads": "", "modules": ""},
        "--workdir=runs/digits picture.png --layers=1",
    ),
    "export": Mode(
        "save a trained run as one file that needs only jax, or in another library's weight format",
        "--workdir=RUN",
        RUN,
        {"format": "", "modules": "", "debug": ""},
        "--workdir=runs/digits --format=stablehlo",
    ),
    "import": Mode(
        "make a run from the weights of Hugging Face (BERT, ViT), timm or big_vision",
        "--workdir=FOLDER FILE_OR_FOLDER",
        "a folder for the run, and the weights",
        {"num_heads": "", "num_sentences": "", "debug": ""},
        "--workdir=runs/vit vit/model.safetensors --num_heads=3",
    ),
    "sweep": Mode(
        "train every treatment and seed of a config's sweep",
        "--config=FILE --workdir=FOLDER",
        "a config file with a sweep, and a folder for its runs",
        {"treatments": "", "seeds": "", "workers": "", "check": ""},
        "--config=configs/digits.py --workdir=runs/sweep --treatments=siren_2d,span_2d",
    ),
    "report": Mode(
        "write the tables and figures of a sweep",
        "--workdir=SWEEP [MORE_FOLDERS_OF_THE_SWEEP ...]",
        "the folder of a sweep",
        {"debug": ""},
        "--workdir=runs/sweep",
    ),
    "benchmark": Mode(
        "time training updates with several attention implementations, in turns",
        "--config=FILE --workdir=FOLDER",
        "a config file and a folder for the figures",
        {"implementations": "", "dtypes": "", "batch_sizes": ""},
        "--config=configs/cifar2d_span.py:quick --workdir=runs/benchmark --implementations=auto,dense",
    ),
    "configs": Mode(
        "list the configs that come with the package, each with its first line", "", "nothing else", {}, ""
    ),
}
_MODE = flags.DEFINE_enum("mode", "train", list(MODES), "What to do.")
_SEEDS = flags.DEFINE_list(
    "seeds", None, "Seeds of a sweep, instead of its own; when training: one run per seed, vmapped, in WORKDIR/SEED."
)
_TREATMENT = flags.DEFINE_string("treatment", None, "A treatment of the config's sweep, which sets its fields.")
_MODULES = flags.DEFINE_list("modules", [], "Modules of your own whose classes a run's config may name.")
_TOP = flags.DEFINE_integer("top", 1, "Number of most likely classes to print per input.")
OF_A_TEXT: tuple[flags.FlagHolder[Any], ...] = (
    flags.DEFINE_string("prompt", None, "Start of the generated text; default: standard input."),
    flags.DEFINE_integer("length", 500, "Number of characters to generate."),
    flags.DEFINE_float("temperature", 1.0, "Sampling temperature; 0: always the most likely character."),
    flags.DEFINE_integer("top_k", 0, "Sample only from this many most likely characters; 0: from all."),
    flags.DEFINE_integer("seed", 0, "Random seed of the sampling.", lower_bound=0, upper_bound=2**32 - 1),
)
_LAYERS = flags.DEFINE_list("layers", [], "Only these layers, from 1; by default all.")
_HEADS = flags.DEFINE_list("heads", [], "Only these heads, from 1; by default all.")
_FORMAT: flags.FlagHolder[Any] = flags.DEFINE_enum(
    "format",
    "stablehlo",
    ["stablehlo", "hugging_face", "timm", "big_vision"],
    "Export a StableHLO program, or weights named as in another library (needs the extra convert).",
)
_NUM_SENTENCES = flags.DEFINE_integer(
    "num_sentences", None, "Number of sentences per input of an imported BERT classifier.", lower_bound=1, upper_bound=2
)
_NUM_HEADS = flags.DEFINE_integer(
    "num_heads", None, "Number of attention heads, which timm's files do not contain.", lower_bound=1
)
_WANDB = flags.DEFINE_string("wandb", None, "Metrics go to this project of Weights & Biases too (extra wandb).")
_DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "Join the other processes of the job as jax finds them (TPU pods, Kubernetes, Open MPI)."
)
flags.DEFINE_bool("version", False, "Print the version, and do nothing else.")
flags.DEFINE_bool("debug", False, "Show the traceback of an error.")
OF_A_SWEEP = (
    flags.DEFINE_enum(
        "executor", "local", ["local", "slurm"], "Where to start the runs: on this machine, or as SLURM jobs."
    ),
    flags.DEFINE_integer(
        "workers", 0, "Number of runs at a time; 0: one per GPU of this machine, or one without a GPU."
    ),
    flags.DEFINE_integer(
        "timeout_minutes", None, "Time limit of a SLURM job, which is then resubmitted; default: one day."
    ),
    flags.DEFINE_list("slurm", [], "Parameters of a SLURM job, as submitit names them: partition=gpu,account=me."),
    flags.DEFINE_list("treatments", None, "Only these treatments of the sweep."),
    flags.DEFINE_string(
        "finished", None, "Folder of a runs.jsonl whose runs are not run again; --mode=report joins both folders."
    ),
    flags.DEFINE_bool(
        "check", False, "Run nothing: tell the sweep's treatments and hypotheses, and check the config of each run."
    ),
    flags.DEFINE_integer("vmap_seeds", 1, "Number of seeds of a treatment to train together, vmapped in one program."),
)
OF_A_BENCHMARK = (
    flags.DEFINE_list("implementations", ["auto", "dense"], "Attention implementations to compare."),
    flags.DEFINE_list("dtypes", None, "Values of model.dtype; by default the config's."),
    flags.DEFINE_list("batch_sizes", None, "Values of train.batch_size; by default the config's."),
    flags.DEFINE_list("sigmas", None, "Values of the span's initial_sigma; by default the config's."),
    flags.DEFINE_integer("steps", 10, "Updates of a timed run.", lower_bound=1),
    flags.DEFINE_integer("repeats", 3, "Timed runs per case; fewer if --seconds is short.", lower_bound=1),
    flags.DEFINE_float("seconds", 600, "Time budget of all timed runs; each case has at least three.", lower_bound=0),
    flags.DEFINE_float("memory_limit_gib", 8, "What needs more temporary memory is skipped.", lower_bound=0),
    flags.DEFINE_enum(
        "data", "random", ["random", "read"], "Time updates on random pixels, or on the config's data set (read)."
    ),
    flags.DEFINE_string("trace", None, "Folder for a profile of each case, to open in Perfetto."),
)
FLAGS_OF: dict[str, tuple[str, ...]] = {"seeds": ("train", "sweep"), "wandb": ("train", "sweep")}
FLAGS_OF |= {"distributed": ("train", "evaluate"), "treatment": ("train", "evaluate", "benchmark")}
FLAGS_OF |= {"modules": tuple(mode for mode in MODES if mode not in ("import", "report", "configs"))}
FLAGS_OF |= {"top": ("predict",), "layers": ("explain",), "heads": ("explain",)}
FLAGS_OF |= {"format": ("export",), "num_heads": ("import",), "num_sentences": ("import",)}
FLAGS_OF |= {flag.name: ("sweep",) for flag in OF_A_SWEEP} | {flag.name: ("benchmark",) for flag in OF_A_BENCHMARK}
FLAGS_OF |= {flag.name: ("generate",) for flag in OF_A_TEXT}
NO_CONFIG: dict[str, str] = dict.fromkeys(
    ("generate", "predict", "explain", "export"), "expected none in this mode, as the run folder has its own config"
)
NO_CONFIG |= {
    "report": "expected none with --mode=report, which reads finished runs",
    "import": "expected none with --mode=import, as the weights determine the model",
    "configs": "expected none with --mode=configs, which lists those of the package",
}
NO_CONFIG_YET = "expected --config=FILE too, whose field it sets, such as --config=configs/digits.py"
# Options that --help lists for all modes.
MAIN_FLAGS = ("config", "workdir", "mode", "modules", "treatment", "seeds", "debug", "version")
EXAMPLES = (
    "posattn --config=configs/digits.py --workdir=runs/digits --config.train.total_epochs=2",
    "posattn --mode=predict --workdir=runs/digits picture.png --top=3",
)
OWN_CONFIG = command_line.PACKAGE / "config" / "saved.py"  # the config file that reads that of a run folder
OF_A_RUN = ("evaluate", "translate", "generate", "predict", "explain", "export")  # their --workdir is a trained run
WITH_ARGUMENTS = ("predict", "explain", "import", "report")  # the other modes take only options


def main(argv: list[str]) -> int:
    """Runs the chosen mode; returns the exit code."""
    if _MODE.value not in WITH_ARGUMENTS:
        command_line.check_no_more(argv[1:])
    if _MODE.value == "configs":
        found = command_line.shipped_configs()
        width = max(map(len, found)) + 2
        print(*(f"{name:{width}}{about}" for name, about in found.items()), sep="\n")
        return 0
    extras.need(*extras.LIBRARIES["train"])
    workdir, output = pathlib.Path(_WORKDIR.value or ""), cast(io.TextIOBase, sys.stdout)

    # Imported here, so that wrong flags are reported before the libraries of a run are loaded.
    match _MODE.value:
        case "train":
            seeds = None if _SEEDS.value is None else command_line.numbers("--seeds", _SEEDS.value)
            config = _config()
            from posattn_jax.run.train import train
            from posattn_jax.system import processes

            processes.join(_DISTRIBUTED.value)
            train(config, workdir, _WANDB.value, seeds)
        case "evaluate":
            config = _config()
            from posattn_jax.run.evaluate import evaluate
            from posattn_jax.system import processes

            processes.join(_DISTRIBUTED.value)
            evaluate(config, workdir)
        case "translate":
            from posattn_jax.use import translate

            _write_utf8()
            translate.translate(workdir, _CONFIG.value, sys.stdin.buffer, output)
        case "generate":
            from posattn_jax.use import generate

            prompt, number, temperature, top_k, seed = (flag.value for flag in OF_A_TEXT)
            prompt = sys.stdin.buffer.read() if prompt is None else prompt.encode()
            sampling = {"temperature": temperature, "top_k": top_k, "seed": seed}
            _write_utf8()
            generate.generate(workdir, prompt, output, number=number, **sampling)
        case "predict":
            from posattn_jax.use import predict

            return predict.predict(workdir, argv[1:], sys.stdin.buffer, output, _TOP.value)
        case "explain":
            from posattn_jax.use import explain

            return explain.explain(workdir, argv[1:], sys.stdin.buffer, _LAYERS.value, _HEADS.value)
        case "export":
            from posattn_jax.use import export, export_weights

            if _FORMAT.value == "stablehlo":
                export.export(workdir)
            else:
                export_weights.export_weights(workdir, _FORMAT.value)
        case "import":
            from posattn_jax.use import imported

            imported.import_weights(workdir, argv[1:], _NUM_HEADS.value, _NUM_SENTENCES.value)
        case "sweep":
            from posattn_jax.sweeps import command

            command.sweep(flags.FLAGS, workdir)
        case "report":
            from posattn_jax.analysis import report
            from posattn_jax.config.saved import completed

            report.write(workdir, [pathlib.Path(folder) for folder in argv[1:]], completed)
        case "benchmark":
            config = _config()
            from posattn_jax.run import benchmark

            benchmark.benchmark(flags.FLAGS, config, workdir)
    return 0


def _write_utf8() -> None:
    """Sets the encoding of the standard output, whatever the locale is: what is read is UTF-8 too."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")


def _config() -> ConfigDict:
    """The config with the changes of the command line."""
    from posattn_jax.config import experiment
    from posattn_jax.config.parts import without_none

    config, flag = _CONFIG.value, flags.FLAGS["config"]
    changed = config_flags.get_override_values(flag)
    if _TREATMENT.value is not None:
        from posattn_jax.sweeps import prepare

        prepare.treat(config, config_flags.get_config_filename(flag), changed, _TREATMENT.value)
    experiment.check_used(config, changed)
    return without_none(config)


def help_text(argv: list[str]) -> str | None:
    """The text of --help, of the mode if one is given, of --helpfull or of --version; None without such a flag.

    A command line without anything asks for help too.
    """
    if "--version" in argv:
        try:
            return f"posattn_jax {metadata.version('posattn_jax')}"
        except metadata.PackageNotFoundError:
            return "posattn_jax, not installed: a checkout"
    match short_help.asked_for(argv):
        case "short":
            mode = short_help.mode_of(argv, MODES)
            if mode is not None:
                others = [name for name, modes in FLAGS_OF.items() if mode in modes and name not in MODES[mode].options]
                return short_help.write_mode(mode, MODES[mode], flags.FLAGS, others)
            options = short_help.described(flags.FLAGS, MAIN_FLAGS)
            options |= {"--config.FIELD": "A field of the config: --config.train.total_epochs=2."}
            about = {name: each.about for name, each in MODES.items()}
            more = (
                "Options of one mode: posattn --mode=MODE --help. All options, also of libraries: posattn --helpfull."
            )
            return short_help.write(str(__doc__).splitlines()[0], about, options, EXAMPLES, more)
        case "full":
            return f"{__doc__}\n{flags.FLAGS.get_help()}"
    return None


def parse_flags(argv: list[str]) -> list[str]:
    """Parses the command line. Raises InputError for anything wrong with it, including the config's fields."""
    flags.FLAGS.set_gnu_getopt()  # options may follow files
    command_line.parse_but_config(flags.FLAGS, argv)
    for name, modes in FLAGS_OF.items():
        if flags.FLAGS[name].present and _MODE.value not in modes:
            raise InputError(f"--{name} is for --mode={' and '.join(modes)}, and --mode is {_MODE.value}")
    _trust(argv)
    argv = _with_own_config(argv)
    field = next((each for each in argv if re.match(r"--?config\.", each)), None)
    if field is not None and command_line.last_value(argv, "config") is None:
        wrong = NO_CONFIG.get(command_line.last_value(argv, "mode") or "", NO_CONFIG_YET)
        raise InputError(f"{field}: {wrong}")
    if _MODE.value in OF_A_RUN and _WORKDIR.value:
        config_of_run(pathlib.Path(_WORKDIR.value))
    rest = command_line.parse_with_config(flags.FLAGS, argv)
    if _MODE.value in NO_CONFIG and _CONFIG.value is not None:
        raise InputError(f"--config: {NO_CONFIG[_MODE.value]}")
    if _MODE.value not in (*NO_CONFIG, "translate"):
        command_line.check_config_given(_CONFIG.value)
    if not _WORKDIR.value and _MODE.value != "configs":
        raise InputError("--workdir=FOLDER is missing: the run folder, such as --workdir=runs/digits")
    if (_WORKDIR.value or "").startswith("~"):
        raise InputError(f"--workdir={_WORKDIR.value}: a shell expands no ~ there: write $HOME, or a whole path")
    if _TREATMENT.value is not None or flags.FLAGS.treatments is not None:
        from posattn_jax.analysis.plan import load_plan

        plan = load_plan(config_flags.get_config_filename(flags.FLAGS["config"]))
        plan.select(flags.FLAGS.treatments, None)
        if _TREATMENT.value is not None:
            plan.treatment(_TREATMENT.value)
    if _MODE.value == "translate":
        for field in config_flags.get_override_values(flags.FLAGS["config"]):
            if not field.startswith("task.decoding.") and field not in OF_THE_PLACE:
                raise InputError(f"--config.{field}: expected only fields of task.decoding with --mode=translate")
    if _SEEDS.value is not None and "seed" in config_flags.get_override_values(flags.FLAGS["config"]):
        raise InputError("--config.seed: expected no value with --seeds, which sets the seed of each run")
    if _WANDB.value is not None:
        if not _WANDB.value:
            raise InputError("--wandb=: expected the name of a project")
        if (_MODE.value == "train" and _SEEDS.value is not None) or flags.FLAGS.vmap_seeds > 1:
            raise InputError(f"--wandb={_WANDB.value}: expected seeds trained one by one, not vmapped")
        from posattn_jax.train import writers

        writers.load_wandb()
    return rest


def _trust(argv: list[str]) -> None:
    """Trusts the modules that the command line names, before a config file reads that of a run."""
    kinds = [each.partition("=")[2] for each in argv if re.match(r"--?config\.[\w.]+\.kind=\S+:", each)]
    modules = [kind.rpartition(":")[0] for kind in kinds]
    modules += [each for each in (command_line.last_value(argv, "modules") or "").split(",") if each]
    if modules:
        from posattn_jax.config import names

        for module in modules:
            names.trust(module)


def _with_own_config(argv: list[str]) -> list[str]:
    """The command line with the run's own config, if its mode changes that of a run and it names no config."""
    given = {flag: command_line.last_value(argv, flag) for flag in ("mode", "workdir", "config", "treatment")}
    needs = given["config"] is not None or given["treatment"] is not None  # a treatment is of a config file
    if given["mode"] not in ("evaluate", "translate") or not given["workdir"] or needs:
        return argv
    return [*argv[:1], f"--config={OWN_CONFIG}:{given['workdir']}", *argv[1:]]


def _quieten_libraries() -> None:
    """Silences tracebacks of library threads: their errors are raised again in the main thread, and reported once."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    absl_logging.set_verbosity(absl_logging.FATAL)
    sys.excepthook = threading.excepthook = lambda *_: None
    sys.unraisablehook = lambda _: None  # nor errors at exit, such as flushing to a full disk


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def run(argv: list[str]) -> int:
    """Parses the flags and runs `main`. Prints each error in one line; returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that it cannot show ends no run; stderr does so
    argv = command_line.with_present_names(argv)
    text = help_text(argv[1:])
    if text is not None:
        print(text)
        return 0
    debug = any(re.fullmatch("--?debug(=(true|1))?", argument, re.IGNORECASE) for argument in argv)
    if not debug:
        _quieten_libraries()
    try:
        with extras.named():
            return main(parse_flags(argv))
    except KeyboardInterrupt:
        continues = flags.FLAGS.is_parsed() and _MODE.value in ("train", "sweep")
        rest = ": the same command continues from the last checkpoint" if continues else ""
        print(f"posattn_jax: stopped by SIGINT{rest}", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        if debug:
            raise
        if command_line.reader_has_left(error):
            return 128 + signal.SIGPIPE
        exit_code = getattr(error, "exit_code", None)
        if exit_code is not None:
            print(f"posattn_jax: {_one_line(error)}", file=sys.stderr)
            return exit_code
        if getattr(error, "errno", None) == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error):
            error = RunError(f"the disk is full ({_WORKDIR.value}): what was saved before is kept")
        name = "" if isinstance(error, (InputError, RunError)) else f"{type(error).__name__}: "
        print(f"posattn_jax: error: {name}{_one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1


def command() -> int:
    """The command `posattn`, which does the same as `python -m posattn_jax.main`; returns the exit code."""
    sys.path.insert(0, os.getcwd())
    return run(sys.argv)


if __name__ == "__main__":
    sys.exit(run(sys.argv))
