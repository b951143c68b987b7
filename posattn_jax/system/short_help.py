"""What --help of a command with modes prints: the modes, the main flags with a line each, and examples."""

from collections.abc import Mapping, Sequence

from absl import flags

SHORT = ("-h", "-help", "--help")
FULL = ("-helpfull", "--helpfull")


def asked_for(argv: Sequence[str]) -> str | None:
    """ "short" of --help, "full" of --helpfull; None of neither."""
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
    """The page: what it is about, each mode and each flag in a line, examples, and where there is more."""
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
    """Flags as one writes them, and what their definitions say of them."""
    return {f"--{name}": " ".join(str(values[name].help).split()) for name in names}
