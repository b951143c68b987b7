"""Compares how fast trainings are on a machine whose speed wavers: they take turns, so that all meet the same.

  python -m benchmarks.cpu.turns [--rounds=20 --seconds=2 --warm_up=0] [--out=FOLDER] NAME=COMMAND NAME=COMMAND ...

A command is run by the shell, with ` --workdir=` and a folder added, and writes metrics.jsonl there as
`posattn_jax.main` does; `--config.train.log_steps=5` makes the count of its updates fine enough, and it should have
more updates to do than there is time for. Each is started alone and stopped (SIGSTOP) once it has counted updates;
then every round lets each run for so many seconds, in an order drawn at random. A system that takes memory from what is
stopped slows its first seconds: `--warm_up=3` lets it run for so long before its updates count. For instance

  python -m benchmarks.cpu.turns \
      "one=python -m posattn_jax.main --config=configs/digits.py --config.train.log_steps=5" \
      "two=JAX_NUM_CPU_DEVICES=2 python -m posattn_jax.main --config=configs/digits.py --config.train.log_steps=5"

prints of each the updates a second, and the ratio to the first's. POSIX only. Exit codes: 0 done, 1 a command ended too
early, 2 wrong input, 130 stopped by Ctrl-C.
"""

import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import flags

from posattn_jax.benchmarks.command import describe_machine
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError, RunError
from posattn_jax.system.files import read_metrics, write_json


def define_flags() -> flags.FlagValues:
    """The flags, unparsed, apart from those of any other command."""
    values = flags.FlagValues()
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_integer("rounds", 20, "Turns that each command has.", lower_bound=1, **own)
    flags.DEFINE_float("seconds", 2.0, "Length of a turn, in seconds.", lower_bound=0.01, **own)
    flags.DEFINE_float("warm_up", 0.0, "Seconds before a turn, not counted.", lower_bound=0.0, **own)
    flags.DEFINE_string("out", None, "The folder for results.json.", **own)
    return values


def parse(argv: list[str]) -> tuple[flags.FlagValues, dict[str, str]]:
    """The flags, and the commands by name; InputError for anything wrong with them."""
    options = define_flags()
    rest = command_line.parse_values(options, argv)[1:]
    commands = {}
    for argument in rest:
        name, separator, command = argument.partition("=")
        if not separator or not name.isidentifier() or name in commands:
            raise InputError(f'"{argument}": expected NAME=COMMAND, each name once')
        commands[name] = command
    if len(commands) < 2:
        raise InputError(f"{len(commands)} commands: expected two or more, each NAME=COMMAND")
    return options, commands


class Turn:
    """A training that runs when it is its turn.

    Attributes:
      updates: that it was seen to make in its turns.
      seconds: of its turns.
    """

    def __init__(self, name: str, command: str, folder: pathlib.Path):
        self.name, self._folder, self.updates, self.seconds = name, folder, 0, 0.0
        self._log = folder.with_suffix(".log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                f"{command} --workdir={folder}", shell=True, stdout=log, stderr=log, start_new_session=True
            )
        while self._step() == 0:
            time.sleep(0.2)
            self.check()
        self._signal(signal.SIGSTOP)

    def take(self, seconds: float, warm_up: float = 0.0) -> None:
        """Runs for so long, and is counted after `warm_up` seconds of its own."""
        self._signal(signal.SIGCONT)
        time.sleep(warm_up)
        before, started = self._step(), time.perf_counter()
        time.sleep(seconds)
        self._signal(signal.SIGSTOP)
        self.seconds += time.perf_counter() - started
        self.check()
        self.updates += self._step() - before

    def check(self) -> None:
        """RunError where the command has ended."""
        code = self._process.poll()
        if code is not None:
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise RunError(f"{self.name} ended too early, with exit code {code}: {' '.join(last) or 'no message'}")

    def end(self) -> None:
        """Whatever it was at."""
        if self._process.poll() is None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, signum: int) -> None:
        os.killpg(self._process.pid, signum)

    def _step(self) -> int:
        path = self._folder / "metrics.jsonl"
        return max((row["step"] for row in read_metrics(path)), default=0) if path.exists() else 0


def measure(commands: dict[str, str], rounds: int, seconds: float, warm_up: float = 0.0) -> dict[str, dict[str, Any]]:
    """Of every command its updates, seconds, updates a second, and the ratio of these to the first command's."""
    turns: list[Turn] = []
    order = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, command in commands.items():
                turns.append(Turn(name, command, pathlib.Path(folder, name)))
            for _ in range(rounds):
                for turn in order.sample(turns, len(turns)):
                    turn.take(seconds, warm_up)
        finally:
            for turn in turns:
                turn.end()
    rates = [turn.updates / turn.seconds for turn in turns]
    return {
        turn.name: {
            "command": commands[turn.name],
            "updates": turn.updates,
            "seconds": turn.seconds,
            "updates_per_second": rate,
            "ratio": rate / rates[0] if rates[0] else None,
        }
        for turn, rate in zip(turns, rates, strict=True)
    }


def main(argv: list[str]) -> int:
    """Measures and tells; returns the exit code."""
    command_line.show_help(define_flags(), argv, str(__doc__))
    options, commands = parse(argv)
    out = command_line.make_folder(options.out)
    try:
        found = measure(commands, options.rounds, options.seconds, options.warm_up)
    except RunError as error:
        print(f"posattn_jax: error: {error}", file=sys.stderr)
        return 1
    for name, each in found.items():
        ratio = "-" if each["ratio"] is None else f"{each['ratio']:.2f}"
        print(f"{name:<20}{each['updates_per_second']:>10.2f} updates/s{ratio:>8} x {next(iter(found))}")
    if out is not None:
        asked = {"rounds": options.rounds, "seconds": options.seconds, "warm_up": options.warm_up}
        write_json(out / "results.json", {"options": asked, **describe_machine(), "commands": found})
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv))
