"""Parses the text of a compiled program: its instructions, and how often each of them runs."""

import re
from collections.abc import Callable
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
# The name, and the text right of "=": a type, in which no parenthesis follows a space and a word, and the operation.
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ((?:.*?\s)??([a-z][a-z0-9\-]*)\(.*)$")


class Instruction(NamedTuple):
    """An instruction of a program.

    Attributes:
      name, operation: such as "fusion.3" and "fusion".
      text: the text right of "=".
    """

    name: str
    operation: str
    text: str


class Module:
    """The instructions of every computation.

    Attributes:
      computations: the instructions of each computation, by its name.
      entry: the name of the computation that is the program.
    """

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = current = ""
        for line in text.splitlines():
            if found := _COMPUTATION.match(line):
                current = found[2]
                self.computations[current] = []
                self.entry = current if found[1] else self.entry
            elif found := _INSTRUCTION.match(line):
                self.computations[current].append(Instruction(found[1], found[3], found[2]))
            elif current and self.computations[current]:  # an instruction whose text has several lines
                last = self.computations[current].pop()
                self.computations[current].append(last._replace(text=f"{last.text}\n{line}"))

    def runs(self, cost: Callable[[Instruction], float]) -> list[tuple[Instruction, int]]:
        """The instructions that contain no others, each with the number of times it runs.

        For a choice at run time, these are the instructions of the branch with the highest `cost`.

        Raises:
          ValueError: the number of a loop's steps is known only at run time.
        """
        return self._runs(self.entry, cost)

    def _runs(self, computation, cost):
        found = []
        for instruction in self.computations[computation]:
            if instruction.operation == "while":
                steps = self._steps(instruction)
                body = self._runs(_named("body", instruction), cost)
                found += [(inner, steps * times) for inner, times in body]
            elif instruction.operation == "conditional":
                branches = [self._runs(name, cost) for name in _branches(instruction)]
                found += max(branches, key=lambda runs: sum(times * cost(inner) for inner, times in runs))
            elif instruction.operation == "call":
                found += self._runs(_named("to_apply", instruction), cost)
            else:
                found.append((instruction, 1))
        return found

    def _steps(self, loop):
        """The steps of a loop: the compiler's number, or the only bound in its condition, since JAX counts from 0."""
        known = re.search(r'known_trip_count"?:\s*\{"?n"?:\s*"?(\d+)', loop.text)
        if known is not None:
            return int(known[1])
        condition = self.computations[_named("condition", loop)]
        bounds = [re.match(r"s32\[\]\S* constant\((\d+)\)", instruction.text) for instruction in condition]
        bounds = [int(bound[1]) for bound in bounds if bound is not None]
        if len(bounds) != 1:
            raise ValueError(f"{loop.name}: a loop's length is known only at run time")
        return bounds[0]


def _named(attribute, instruction):
    found = re.search(rf"{attribute}=%?([\w.\-]+)", instruction.text)
    assert found is not None, instruction
    return found[1]


def _branches(instruction):
    listed = re.search(r"branch_computations=\{([^}]*)\}", instruction.text)
    if listed is not None:
        return re.findall(r"%?([\w.\-]+)", listed[1])
    return [_named(f"{side}_computation", instruction) for side in ("true", "false")]
