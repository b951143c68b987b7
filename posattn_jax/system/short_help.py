"""The text of --help for a command with modes: the modes, the main flags with a line each, and examples."""

from collections.abc import Mapping, Sequence

from absl import flags

SHORT = ("-h", "-help", "--help")
FULL = ("-helpfull", "--helpfull")


def asked_for(argv: Sequence[str]) -> str | None:
    """ "short" for --help, "full" for --helpfull, None for neither."""
    if any(argument in FULL for argument in argv):
        return "full"
    return "short" if any(argument in SHORT for argument in argv) else None


def mode_of(argv: Sequence[str], modes: Mapping[str, str]) -> str | None:
    """The mode that the command line names, if there is one."""
    named = [
        argument.lstrip("-").removeprefix("mode=") for argument in argv if argument.lstrip("-").startswith("mode=")
    ]
    return named[-1] if named and named[-1] in modes else None


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
