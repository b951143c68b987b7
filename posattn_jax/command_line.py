"""What the commands share: flags with a config file, the folder of results, and errors told in one line."""

import pathlib
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

from absl import flags

from posattn_jax.errors import InputError


def parse_with_config(values: flags.FlagValues, argv: list[str]) -> list[str]:
    """Parses flags of which one, "config", is a config file; returns what is left of the command line.

    Raises:
      InputError: anything wrong with it, the config's fields included.
    """
    for argument in argv:
        path = argument.removeprefix("--config=").split(":")[0]
        if argument.startswith("--config=") and not pathlib.Path(path).is_file():
            raise InputError(f"{argument}: no such file")
    try:
        rest = values(argv)
        _ = values["config"].value  # read only now
    except (AttributeError, KeyError) as error:
        text = str(error.args[0])
        near = re.search('Did you mean "(.*)" instead of "(.*)"', text)
        hint = f'"{near[2]}", did you mean "{near[1]}"?' if near else text
        raise InputError(f"--config: no field {hint}") from error
    except Exception as error:  # flags.Error, or whatever a config file raises, with its traceback as the message
        text = re.sub(r"^(ValueError|SyntaxError): ", "", str(error).strip().splitlines()[-1])
        hint = " (run from the folder that holds configs/)" if "No module named 'configs'" in text else ""
        raise InputError(text + hint) from error
    return rest


def parse(values: flags.FlagValues, argv: list[str]) -> flags.FlagValues:
    """Parses flags, which are all that the command line may have; InputError for anything wrong with it."""
    try:
        rest = values(argv)[1:]
    except flags.Error as error:
        raise InputError(str(error)) from error
    check_no_more(rest)
    return values


def check_config_given(config: Any) -> None:
    """InputError without a config."""
    if config is None:
        raise InputError("--config=FILE is missing, such as --config=configs/digits.py")


def numbers(flag: str, values: list[str]) -> list[int]:
    """The values of a flag as numbers; InputError unless they are whole, and each is there once."""
    try:
        found = [int(value) for value in values]
    except ValueError as error:
        raise InputError(f"{flag}={','.join(values)}: expected whole numbers") from error
    if not found or len(set(found)) < len(found):
        raise InputError(f"{flag}={','.join(values)}: expected at least one number, and each once")
    return found


def check_no_more(rest: list[str]) -> None:
    """InputError where the command line has more than options."""
    if rest:
        raise InputError(f'unexpected argument "{rest[0]}": options are written --name=value')


def make_folder(out: str | None, flag: str = "out") -> pathlib.Path | None:
    """The folder that a flag names, made where it is missing; None where none is asked for."""
    if out is None:
        return None
    folder = pathlib.Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--{flag}={out}: {error.strerror}") from error
    return folder


def run(main: Callable[[list[str]], int], argv: list[str]) -> int:
    """`main`, with wrong input told in one line; returns the exit code."""
    try:
        return main(argv)
    except InputError as error:
        print(f"posattn_jax: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("posattn_jax: stopped by SIGINT", file=sys.stderr)
        return 128 + signal.SIGINT
