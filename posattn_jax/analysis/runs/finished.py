"""The finished runs of a sweep, and the curves of their treatments, from folders or from a file."""

import dataclasses
from collections.abc import Callable
from typing import Any

from flax.traverse_util import flatten_dict

from posattn_jax.analysis.plan import Plan, Treatment
from posattn_jax.analysis.runs.curves import Curve, Spans
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import OF_THE_PLACE

MAY_DIFFER = {"seed", *OF_THE_PLACE}  # the fields in which runs of one treatment may differ
Complete = Callable[[dict[str, Any]], dict[str, Any]]  # updates a saved config to the present version


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
      treatment, seed: the treatment and the seed.
      config, summary: the contents of its config.json and summary.json.
      figures: the metrics of the epoch, or of the evaluation, that the sweep compares.
      response: the one of these that it compares.
    """

    treatment: str
    seed: int
    config: dict[str, Any]
    summary: dict[str, Any]
    figures: dict[str, Any]
    response: float


@dataclasses.dataclass(frozen=True)
class Runs:
    """A sweep's finished runs.

    Attributes:
      plan: the plan of the sweep.
      runs: treatment -> its finished runs. Treatments and seeds are in the plan's order.
      left_out: a line for everything that was started and is missing, or was not used: what it is, ":" and why.
      commands: the commands that ran the sweep, as far as they are known.
      curves, spans: treatment -> data of pictures: see `curves.py`.
      costs: treatment -> the costs of an update, as `sweeps.costs` has measured them.
      p: treatment -> baseline -> {"bleu", "chrf"}, p-values of a paired bootstrap test of their translations.
    """

    plan: Plan
    runs: dict[str, list[Run]]
    left_out: list[str]
    commands: list[str]
    curves: dict[str, dict[str, Curve]]
    spans: dict[str, Spans]
    costs: dict[str, dict[str, float]]
    p: dict[str, dict[str, dict[str, float]]]

    def responses(self, treatment: str) -> list[float]:
        """The responses of all finished runs of a treatment."""
        return [run.response for run in self.runs.get(treatment, [])]

    @property
    def treatments(self) -> list[Treatment]:
        """The treatments with a finished run."""
        return [treatment for treatment in self.plan.treatments if treatment.name in self.runs]

    @property
    def missing(self) -> list[str]:
        """`left_out`, after a line for the treatments and runs of the plan that were not started."""
        known = {line.split(":")[0] for line in self.left_out} | {f"{run.treatment}/{run.seed}" for run in self.all}
        names = []
        for treatment in self.plan.treatments:
            planned = [f"{treatment.name}/{seed}" for seed in self.plan.seeds_of(treatment)]
            waiting = [name for name in planned if name not in known]
            names += [treatment.name] if waiting == planned else waiting
        return [*([f"{', '.join(names)}: not started"] if names else []), *self.left_out]

    @property
    def judged_by(self) -> str:
        """The examples of the response: "validation" or "test"."""
        return "test" if self.all[0].config["data"].get("validation") == "test" else "validation"

    @property
    def response_label(self) -> str:
        """A description of `responses`."""
        if not self.plan.evaluate:
            return f"{self.plan.epoch}-epoch {self.judged_by} {self.plan.response}"
        changes = ", ".join(f"{name} = {value}" for name, value in self.plan.evaluate.items())
        of_average = "decoding" in self.all[0].config["task"]
        which = "of averaged checkpoints" if of_average else "after the best epoch"
        return f"{self.plan.part} {self.plan.response} under {changes}, {which}"

    @property
    def response_title(self) -> str:
        """`response_label` as the beginning of a sentence."""
        return self.response_label[0].upper() + self.response_label[1:]

    def figure_label(self, treatment: str, num_runs: int) -> str:
        """The label of a treatment in a figure, with the number of its runs."""
        label = self.plan.treatment(treatment).label.replace("$", r"\$")  # no formula
        return f"{label} (n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{num_runs})"

    @property
    def all(self) -> list[Run]:
        """Every run."""
        return [run for runs in self.runs.values() for run in runs]

    def completed(self, complete: Complete) -> "Runs":
        """The same runs, with all configs and all treatments' fields updated to the present version."""
        treatments = (dataclasses.replace(each, fields=complete(each.fields)) for each in self.plan.treatments)
        return dataclasses.replace(
            self,
            plan=dataclasses.replace(self.plan, treatments=tuple(treatments)),
            runs={
                name: [dataclasses.replace(run, config=complete(run.config)) for run in of_one]
                for name, of_one in self.runs.items()
            },
        )

    def check(self) -> None:
        """Raises InputError if runs differ in more than their seed, or treatments in more than their fields.

        Runs of a treatment also have one tokenizer: folders of text may differ, but then losses are of other tokens.
        """
        fields = {name for treatment in self.plan.treatments for name in treatment.fields}
        first = self.all[0]
        for of_one in self.runs.values():
            for run in of_one:
                check_same(of_one[0], run, MAY_DIFFER)
                _check_tokenizer(of_one[0], run)
                if fields:
                    check_same(first, run, fields | MAY_DIFFER)


def check_same(a: Run, b: Run, may_differ: set[str]) -> None:
    """Raises InputError if the configs of two runs differ in other fields than these, and those within them."""
    one, other = flatten_dict(a.config, sep="."), flatten_dict(b.config, sep=".")
    for name in sorted(one.keys() | other.keys()):
        if _value(one, name) != _value(other, name) and not any(f"{name}.".startswith(f"{x}.") for x in may_differ):
            raise InputError(
                f"{a.treatment}/{a.seed} and {b.treatment}/{b.seed} cannot be compared: "
                f"{name} is {one.get(name)!r} and {other.get(name)!r}"
            )


def _check_tokenizer(a: Run, b: Run) -> None:
    """Raises InputError if two runs have different tokenizers. Some runs have none, or do not say which."""
    one, other = (run.summary.get("tokenizer_sha256") for run in (a, b))
    if one and other and one != other:
        raise InputError(
            f"{a.treatment}/{a.seed} and {b.treatment}/{b.seed} cannot be compared: their tokenizers differ, "
            f"{one[:12]}... and {other[:12]}..."
        )


def _value(config: dict[str, Any], name: str) -> Any:
    """The value of a field. False becomes None, because an older config may lack a field that is False now."""
    value = config.get(name)
    return None if value is False else value
