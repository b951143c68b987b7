"""The text of --help for a command with modes: the modes, the main flags with a line each, and examples."""

import dataclasses
from collections.abc import Mapping, Sequence

from absl import flags

from posattn_jax.system import command_line

SHORT = ("-h", "-help", "--help")
FULL = ("-helpfull", "--helpfull")


@dataclasses.dataclass(frozen=True)
class Mode:
    """What the help says about a mode.

    Attributes:
      about: what it does.
      usage: what is required, as it is written after `posattn --mode=MODE`.
      needs: what that is, in words.
      options: the options that matter, with their meanings; "": the help text of the flag of this name.
      example: what an example has after `posattn --mode=MODE`.
    """

    about: str
    usage: str
    needs: str
    options: Mapping[str, str]
    example: str


def asked_for(argv: Sequence[str]) -> str | None:
    """ "short" for --help or an empty command line, "full" for --helpfull, None for neither."""
    if any(argument in FULL for argument in argv):
        return "full"
    return "short" if not argv or any(argument in SHORT for argument in argv) else None


def mode_of(argv: Sequence[str], modes: Mapping[str, Mode]) -> str | None:
    """The mode that the command line names, if there is one."""
    named = command_line.last_value([*argv], "mode")
    return named if named in modes else None


def write_mode(name: str, mode: Mode, values: flags.FlagValues, others: Sequence[str]) -> str:
    """The text about a mode: its usage, what it needs, the options that matter, the names of the others, an example."""
    command = f"posattn --mode={name}"
    options = {
        f"--{option}": text or " ".join(str(values[option].help).split()) for option, text in mode.options.items()
    }
    width = max(map(len, options), default=0) + 2
    more = [f"Others: {', '.join(f'--{other}' for other in others)}. See posattn --helpfull."] if others else []
    return "\n".join(
        [
            f"Usage: {' '.join([command, *mode.usage.split(), *(['[OPTIONS]'] if options else [])])}",
            f"To {mode.about}. Needs {mode.needs}.",
            *(f"  {option:{width}}{text}" for option, text in options.items()),
            *more,
            f"Example: {' '.join([command, *mode.example.split()])}",
        ]
    )


def write(
    about: str, modes: Mapping[str, str], main_flags: Mapping[str, str], examples: Sequence[str], more: str
) -> str:
    """The text: what the command is about, a line for each mode and flag, examples, and where to find more."""
    width = max(map(len, [*modes, *main_flags])) + 2
    rows = lambda lines: [f"  {name:{width}}{text}" for name, text in lines.items()]
    page = [about, ""]
    page += [
        "Modes, --mode=MODE:",
        *rows(modes),
        "",
        "Options:",
        *rows(main_flags),
        "",
        "Examples:",
        *(f"  {line}" for line in examples),
        "",
        more,
    ]
    return "\n".join(page)


def described(values: flags.FlagValues, names: Sequence[str]) -> dict[str, str]:
    """The flags as they are written on the command line, with the help texts of their definitions."""
    return {f"--{name}": " ".join(str(values[name].help).split()) for name in names}
