"""Functions that all commands share: flags with a config file, the folder of results, and errors in one line."""

import ast
import difflib
import importlib.util
import itertools
import math
import os
import pathlib
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from absl import flags

from posattn_jax.system import extras
from posattn_jax.system.errors import InputError, RunError

# HOME has the folder configs/ that comes with the package: inside an installed package, next to it in a checkout.
PACKAGE = pathlib.Path(__file__).parents[1]
HOME = PACKAGE / "packaged" if (PACKAGE / "packaged").is_dir() else PACKAGE.parent


# What a file in configs/ was called, or one with a variant, and what it is now: a file with the first word of its
# variant, and an option.
EARLIER: dict[str, tuple[str, ...]] = {
    "cifar1d_baseline": ("cifar2d_span.py", "--treatment=baseline_1d"),
    "cifar1d_siren": ("cifar2d_span.py", "--treatment=siren_1d"),
    "cifar1d_span": ("cifar2d_span.py", "--treatment=span_1d"),
    "cifar1d_span_nothreshold": ("cifar2d_span.py", "--treatment=gaussian_1d"),
    "cifar2d_siren": ("cifar2d_span.py", "--treatment=siren_2d"),
    "cifar2d_span_nothreshold": ("cifar2d_span.py", "--treatment=gaussian_2d"),
    "nmt_multi30k": ("nmt.py:multi30k",),
}
EARLIER |= {name: (f"nmt.py:{name}",) for name in ("iwslt14", "wmt14_en_de", "wmt14_en_fr", "wmt18_en_zh")}
EARLIER |= {
    f"translution_{name}": (f"translution.py:{name}",)
    for name in ("mnist", "moving_mnist", "cifar10", "cifar100", "points", "imagenet")
}
for _size in ("tiny", "small", "base"):
    EARLIER |= {f"bert_{_size}": (f"bert.py:{_size}",), f"bert_{_size}:tiny": (f"bert.py:{_size},test",)}


def with_present_names(argv: list[str]) -> list[str]:
    """A command line of an earlier version as one of this version; what changed is printed on standard error."""
    return [now for argument in argv for now in _present(argument)]


def _present(argument: str) -> list[str]:
    given = re.fullmatch(r"--?config=(configs/(\w+)\.py)(:.*)?", argument, re.DOTALL)
    path, stem, variant = given.groups(default="") if given else ("", "", "")
    if re.fullmatch("--?data=made", argument):  # of --mode=benchmark
        now = ["--data=random"]
    elif not given or any((folder / path).is_file() for folder in (pathlib.Path(), HOME)):
        return [argument]
    elif stem + variant in EARLIER:
        file, *options = EARLIER[stem + variant]
        now = [f"--config=configs/{file}", *options]
    elif stem in EARLIER:
        file, *options = EARLIER[stem]
        now = [f"--config=configs/{file}{variant.replace(':', ',', 1) if ':' in file else variant}", *options]
    elif (HOME / "configs" / "studies" / f"{stem}.py").is_file():
        now = [f"--config=configs/studies/{stem}.py{variant}"]
    else:
        return [argument]
    print(f"{argument} is now {' '.join(now)}", file=sys.stderr)
    return now


def parse_with_config(values: flags.FlagValues, argv: list[str]) -> list[str]:
    """Parses flags, of which "config" is a config file; returns the rest of the command line.

    If `configs/NAME.py` is not in the working directory, the one that comes with the package is used.

    Raises:
      InputError: anything wrong with the command line, the config's fields included.
    """
    argv = with_present_names(argv)
    parse_but_config(values, argv)
    argv = [_found(argument) if argument.startswith("--config=") else argument for argument in _once(argv)]
    try:
        with extras.named():
            rest = values(argv)
            _ = values["config"].value  # the config file is read here
    except (AttributeError, KeyError) as error:
        if wrong := _unknown_field(argv):
            raise InputError(wrong) from error
        text = str(error.args[0])
        near = re.search('Did you mean "(.*)" instead of "(.*)"', text)
        unknown = re.fullmatch(r"""["']+(\w+)["']+""", text)
        hint = f'"{near[2]}", did you mean "{near[1]}"?' if near else f'"{unknown[1]}"' if unknown else text
        raise InputError(f"--config: no field {hint}") from error
    except Exception as error:  # flags.Error, or whatever a config file raises, with its traceback as the message
        last = str(error).strip().splitlines()[-1]
        if part := re.match(r"flag (--config\.([\w.]+)=.*): Failed to parse .* as a ConfigDict", last):
            expected = f"expected a field of this part, such as --config.{part[2]}.kind=CLASS; or kind=none"
            raise InputError(f"{part[1]}: {expected}") from error
        raise InputError(re.sub(r"^(ValueError|SyntaxError|[\w.]+\.InputError): ", "", last)) from error
    return rest


def _once(argv: list[str]) -> list[str]:
    """A command line with only the last value of each field; ml_collections would make one tuple of two."""
    found = [re.match(r"--?(config\.[\w.]+)=", argument) for argument in argv]
    last = {each[1]: i for i, each in enumerate(found) if each}
    return [argument for i, argument in enumerate(argv) if not (each := found[i]) or last[each[1]] == i]


def parse_but_config(values: flags.FlagValues, argv: list[str]) -> None:
    """Parses the flags without the config, which takes seconds to read. InputError for anything wrong with them."""
    parse_values(values, [each for each in argv if not re.match(r"--?config\b", each)])


def _unknown_field(argv: list[str]) -> str | None:
    """What is wrong with the first `--config.FIELD` that the config does not have: its path, the near ones, and all."""
    file = last_value(argv, "config")
    given = [each for each in argv if file and re.match(r"--?config\.\w", each)]
    try:
        config = load_config(file).to_dict() if file and given else {}
    except Exception:  # the file itself is wrong
        return None
    for argument in given:
        _, name, *below = argument.lstrip("-").partition("=")[0].split(".")
        above, part = "config", config
        while below and isinstance(part, dict) and name in part:
            above, part, (name, *below) = f"{above}.{name}", part[name], below
        known = sorted(part) if isinstance(part, dict) else []
        if name in known:
            continue
        near = [f"{above}.{each}" for each in difflib.get_close_matches(name, known, 2)]
        near += [each for each in _paths(config, "config") if each.rpartition(".")[2] == name and each not in near][:2]
        hint = f"did you mean --{' or --'.join(near)}? " if near else ""
        return f'{argument}: no field "{name}": {hint}{above} has {", ".join(known) or "no fields"}'
    return None


def _paths(config: dict[str, Any], above: str) -> Iterator[str]:
    """The paths of all fields."""
    for name, value in config.items():
        yield f"{above}.{name}"
        if isinstance(value, dict):
            yield from _paths(value, f"{above}.{name}")


def shipped_configs() -> dict[str, str]:
    """The configs that come with the package, with the first lines of their texts."""
    found = {}
    for path in sorted((HOME / "configs").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        is_config = any(isinstance(each, ast.FunctionDef) and each.name == "get_config" for each in tree.body)
        if is_config and path.parent.name != "lib":  # which others import
            found[path.relative_to(HOME).as_posix()] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def last_value(argv: list[str], flag: str) -> str | None:
    """The value of a flag in an unparsed command line; None if it is not there."""
    found = None
    for argument, following in itertools.pairwise([*argv, ""]):
        if given := re.fullmatch(f"--?{flag}(?:=(.*))?", argument, re.DOTALL):
            found = following if given[1] is None else given[1]
    return found


def load_config(config_file: str) -> Any:
    """The config that `--config=` reads from "FILE" or "FILE:VARIANT", for programs and notebooks.

    Raises:
      InputError: no such file, or one that is a treatment of another now.
    """
    module, variant = load_config_file(config_file)
    return module.get_config(variant) if variant else module.get_config()


def load_config_file(config_file: str) -> tuple[Any, str]:
    """The module of "FILE" or "FILE:VARIANT", and the variant; InputError if there is no such file.

    A file of an earlier version is read by its present name, if that says all.
    """
    present, *option = with_present_names([f"--config={config_file}"])
    if option:
        raise InputError(f"--config={config_file}: expected {present} with {option[0]}, which it is now")
    path, _, variant = _found(present).removeprefix("--config=").partition(":")
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, variant


def _found(argument: str) -> str:
    """`--config=FILE:VARIANT` with the path of an existing file, which may import `configs.NAME`.

    Such an import takes a file of the same folder first, then one that comes with the package.
    """
    name, colon, variant = argument.removeprefix("--config=").partition(":")
    path = next((each for each in (pathlib.Path(name), HOME / name) if each.is_file()), None)
    if path is None:
        near = difflib.get_close_matches(name, shipped_configs())
        raise InputError(f"{argument}: no such file{f'; did you mean {near[0]}?' if near else ''}")
    for folder in path.resolve().parents:
        if folder.name == "configs":
            _import_from(folder.parent, first=True)
    _import_from(HOME)
    return f"--config={path}{colon}{variant}"


def _import_from(folder: pathlib.Path, first: bool = False) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0 if first else len(sys.path), str(folder))


def show_help(values: flags.FlagValues, argv: list[str], about: str) -> None:
    """With --help it prints `about` and the flags, and exits."""
    if {"--help", "-help", "-h"} & set(argv[1:]):
        print(f"{about}\n{values.get_help()}")
        raise SystemExit(0)


def parse(values: flags.FlagValues, argv: list[str], about: str) -> flags.FlagValues:
    """Parses a command line that has only flags; see also `show_help`. InputError for anything wrong with it."""
    show_help(values, argv, about)
    check_no_more(parse_values(values, argv)[1:])
    return values


def parse_values(values: flags.FlagValues, argv: list[str]) -> list[str]:
    """Parses flags; returns the rest of the command line.

    Raises:
      InputError: a wrong flag; a number that is not finite; an empty list where the default is none.
    """
    try:
        rest = values(argv)
    except flags.Error as error:
        raise InputError(str(error)) from error
    for name in values:
        flag = values[name]
        if isinstance(flag.value, float) and not math.isfinite(flag.value):
            raise InputError(f"--{name}={flag.value}: expected a finite number")
        if flag.value == [] and flag.default != []:
            raise InputError(f"--{name} is empty: expected at least one")
    return rest


def check_config_given(config: Any) -> None:
    """InputError without a config."""
    if config is None:
        raise InputError("--config=FILE is missing, such as --config=configs/digits.py")


def numbers(flag: str, values: list[str], kind: Callable[[str], Any] = int, least: int | None = None) -> list[Any]:
    """The values of a flag as numbers; InputError unless they are finite, distinct, at least so much, of this kind."""
    given = f"{flag}={','.join(values)}"
    try:
        found = [kind(value) for value in values]
    except ValueError as error:
        raise InputError(f"{given}: expected {'whole ' if kind is int else ''}numbers") from error
    if not found or len(set(found)) < len(found) or not all(map(math.isfinite, found)):
        raise InputError(f"{given}: expected at least one number, each finite, and each once")
    if least is not None and min(found) < least:
        raise InputError(f"{given}: expected numbers of at least {least}")
    return found


def check_no_more(rest: list[str]) -> None:
    """InputError if the command line has more than options."""
    if rest:
        raise InputError(f'unexpected argument "{rest[0]}": options are written --name=value')


def make_folder(out: str | None, flag: str = "out") -> pathlib.Path | None:
    """The folder that a flag names, which is made if it is missing; None without the flag."""
    if out is None:
        return None
    folder = pathlib.Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--{flag}={out}: {error.strerror}") from error
    return folder


def reader_has_left(error: Exception) -> bool:
    """Whether an error is that the reader of stdout, such as head, has ended. Then nothing more is written there."""
    if not isinstance(error, BrokenPipeError):
        return False
    pipe = select.poll()
    pipe.register(sys.stdout.fileno(), 0)  # of errors alone
    if not pipe.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def run(main: Callable[[list[str]], int], argv: list[str]) -> int:
    """Runs `main`, and prints an error in one line; returns the exit code."""
    try:
        with extras.named():
            return main(argv)
    except (InputError, RunError) as error:
        print(f"posattn_jax: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except OSError as error:  # such as a full disk, which names no file
        if reader_has_left(error):
            return 128 + signal.SIGPIPE
        if error.errno is None:
            raise
        place = "" if error.filename is None else f"{error.filename}: "
        print(f"posattn_jax: error: {place}{error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("posattn_jax: stopped by SIGINT", file=sys.stderr)
        return 128 + signal.SIGINT
