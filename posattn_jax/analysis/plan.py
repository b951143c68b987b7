"""The plan of a sweep: treatments, their seeds, hypotheses about them, and the figures that a paper printed."""

import collections
import dataclasses
import math
import pathlib
import re
from typing import Any, Literal, get_args

from posattn_jax.system.command_line import load_config_file
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json, write_json

Alternative = Literal["greater", "less", "two-sided"]
Claim = tuple[str, str, str, Alternative]  # the first fields of a `Hypothesis`

# The random states of Alfons 2022 (Table 4).
PAPER_SEEDS = (9188, 2755, 361, 1321, 833)


@dataclasses.dataclass(frozen=True)
class Printed:
    """A paper's figures of a treatment: the maximum, the mean and the standard deviation of n runs."""

    max: float
    mean: float
    std: float
    n: int = 5


@dataclasses.dataclass(frozen=True)
class Treatment:
    """One way to train.

    Attributes:
      name: the name of its folder: letters, digits, "_", "-" and ".".
      label: its name in tables and figures.
      fields: the config's fields that it changes, such as {"model.block.attention.span": None}; a part as a dict.
      paper: the paper's figures of it.
      num_seeds: it is trained with the first `num_seeds` seeds of the sweep; None: with all.
      family: the group that it belongs to, in a few words. A figure of many treatments has a colour per family.
    """

    name: str
    label: str
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    paper: Printed | None = None
    num_seeds: int | None = None
    family: str | None = None

    def __post_init__(self):
        object.__setattr__(self, "fields", {path: _plain(value) for path, value in self.fields.items()})


def _plain(value: Any) -> Any:
    """A part of a config as a dict."""
    value = value.to_dict() if hasattr(value, "to_dict") else value
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """H1: the mean of `treatment` is greater than, less than, or different from the mean of `control`.

    With `than`, H1 compares two differences of means: treatment - control, and the same for two other treatments. With
    `also`, H1 is about the mean of several such differences, for example over several data sets.

    Attributes:
      claim: H1 in words.
      treatment, control: names of treatments.
      alternative: the direction that the claim states.
      paper_p: the two-sided p-value that the paper printed.
      than: (treatment, control) of the difference with which the first difference is compared.
      also: (treatment, control) of the other differences, whose mean with the first one H1 is about.
      margin: by how much the treatment may be worse. H1 is then that it is less than control + margin ("less"), or
        greater than control - margin ("greater").
    """

    claim: str
    treatment: str
    control: str
    alternative: Alternative = "two-sided"
    paper_p: float | None = None
    than: tuple[str, str] | None = None
    also: tuple[tuple[str, str], ...] = ()
    margin: float = 0.0

    @property
    def border(self) -> float:
        """The difference of means at the border of H1."""
        return self.margin if self.alternative == "less" else -self.margin

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all treatments that the hypothesis is about, each once."""
        return tuple(self._counts)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of the means of `names`. Their weighted sum is what H1 is about."""
        return tuple(count / (1 + len(self.also)) for count in self._counts.values())

    @property
    def _counts(self) -> dict[str, int]:
        """How often each mean is added, less how often it is subtracted, without those for which that is 0.

        A treatment may be in several pairs. It is one sample all the same, whose mean has one error.
        """
        counts = collections.Counter[str]()
        for added, subtracted in ((self.treatment, self.control), *self.also):
            counts[added] += 1
            counts[subtracted] -= 1
        for name, sign in zip(self.than or (), (-1, 1), strict=False):
            counts[name] += sign
        return {name: count for name, count in counts.items() if count}


@dataclasses.dataclass(frozen=True)
class Plan:
    """A sweep: every treatment with every seed.

    Attributes:
      question: the question that the sweep should answer.
      treatments: the treatments, in the order of tables and figures.
      hypotheses: the hypotheses stated before the runs. Their p-values are corrected together (Holm).
      seeds: the seeds of the split, the initialisation, dropout and the order of the data.
      num_stated: how many seeds the plan was stated with, if `seeds` were chosen later; None: as many as `seeds`.
      evaluate: fields with which every run is evaluated again after training, such as {"data.pool": 1} for a larger
        grid. The response is then that of this evaluation. Empty: it is that of `epoch`.
      part: the part of the data for that evaluation, "validation" or "test".
      baselines: the treatments that the translations of all others are tested against; empty: the first one.
      response: the metric that is compared.
      epoch: the epoch of the response, the "best" by validation, or the "last".
      axis: a field in which treatments differ, such as "model.num_blocks". A figure shows the response against it.
        Treatments that differ in nothing else form a line, named by their label up to its last comma. If the values of
        the field are names, there is a table instead, with a row for each line.
      source: the paper of the printed figures, and its data.
      paper_note: what a reader of the paper's statistics should know.

    Raises:
      InputError: a name is not unique, not known or not valid for a folder, there is no treatment or no seed, or a
        hypothesis compares a treatment with itself.
    """

    question: str
    treatments: tuple[Treatment, ...]
    hypotheses: tuple[Hypothesis, ...] = ()
    seeds: tuple[int, ...] = PAPER_SEEDS
    evaluate: dict[str, Any] = dataclasses.field(default_factory=dict)
    part: Literal["validation", "test"] = "validation"
    baselines: tuple[str, ...] = ()
    response: str = "accuracy"
    epoch: Literal["best", "last"] = "best"
    axis: str | None = None
    source: str | None = None
    paper_note: str | None = None
    num_stated: int | None = None

    def __post_init__(self):
        names = [treatment.name for treatment in self.treatments]
        if not names or not self.seeds:
            raise InputError("a sweep needs at least one treatment and one seed")
        for name in names:
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
                raise InputError(f'treatment "{name}": expected letters, digits, "_", "-" and "." (it names a folder)')
        for what, values in (("treatment", names), ("seed", self.seeds)):
            twice = next((value for value in values if list(values).count(value) > 1), None)
            if twice is not None:
                raise InputError(f"{what} {twice} is there twice")
        for name in self.baselines:
            if name not in names:
                raise InputError(f'baselines: no treatment "{name}" ({", ".join(names)})')
        for hypothesis in self.hypotheses:
            for name in hypothesis.names:
                if name not in names:
                    raise InputError(f'hypothesis "{hypothesis.claim}": no treatment "{name}" ({", ".join(names)})')
            if not hypothesis.names:
                raise InputError(f'hypothesis "{hypothesis.claim}": compares {hypothesis.treatment} with itself')
            if hypothesis.than and hypothesis.also:
                raise InputError(f'hypothesis "{hypothesis.claim}": than and also are set: expected one')
            if hypothesis.margin and hypothesis.alternative == "two-sided":
                raise InputError(f'hypothesis "{hypothesis.claim}": margin={hypothesis.margin} needs a direction')
            if hypothesis.alternative not in get_args(Alternative):
                raise InputError(
                    f'hypothesis "{hypothesis.claim}": alternative="{hypothesis.alternative}": expected one of '
                    f"{', '.join(get_args(Alternative))}"
                )

    def seeds_of(self, treatment: Treatment) -> tuple[int, ...]:
        """The seeds with which a treatment is trained."""
        return self.seeds[: treatment.num_seeds]

    def num_stated_of(self, treatment: Treatment) -> int:
        """The number of runs of a treatment that the hypotheses were stated for."""
        most = self.num_stated or len(self.seeds)
        return min(most, treatment.num_seeds or most)

    def treatment(self, name: str) -> Treatment:
        """The treatment of this name; InputError if there is none."""
        for treatment in self.treatments:
            if treatment.name == name:
                return treatment
        raise InputError(f"--treatment={name}: expected one of {', '.join(each.name for each in self.treatments)}")

    @property
    def summarised(self) -> str:
        """The entry of a run's summary with the response, if runs are not evaluated again."""
        return "best" if self.epoch == "best" else "final"

    @property
    def of_translations(self) -> bool:
        """Whether runs are judged by their translations."""
        return self.response in ("bleu", "chrf")

    @property
    def lower_is_better(self) -> bool:
        """Whether the lowest response is the best, as for a loss."""
        return self.response in ("loss", "bits", "perplexity")

    @property
    def bounds(self) -> tuple[float, float]:
        """The limits of a response. The interval of a mean may exceed them."""
        return (0.0, 1.0) if self.response == "accuracy" else (-math.inf, math.inf)

    def select(self, treatments: list[str] | None, seeds: list[int] | None) -> "Plan":
        """The plan with only these treatments and seeds, and the hypotheses between them; None: all.

        Raises:
          InputError: a treatment is unknown, or nothing is left.
        """
        known = [treatment.name for treatment in self.treatments]
        chosen = known if treatments is None else treatments
        for name in chosen:
            if name not in known:
                raise InputError(f"--treatments={name}: expected some of {', '.join(known)}")
        return dataclasses.replace(
            self,
            treatments=tuple(treatment for treatment in self.treatments if treatment.name in chosen),
            hypotheses=tuple(h for h in self.hypotheses if set(h.names) <= set(chosen)),
            baselines=tuple(name for name in self.baselines if name in chosen),
            seeds=self.seeds if seeds is None else tuple(seeds),
            num_stated=self.num_stated if seeds is None else self.num_stated or len(self.seeds),
        )


def load_plan(config_file: str) -> Plan:
    """The plan that `sweep(variant)` of a config file returns, for "FILE" or "FILE:VARIANT".

    Raises:
      InputError: the file has no `sweep`.
    """
    module, variant = load_config_file(config_file)
    if not hasattr(module, "sweep"):
        raise InputError(f"--config={config_file.partition(':')[0]}: has no sweep() next to its get_config()")
    return module.sweep(variant)


def write_plan(path: pathlib.Path, plan: Plan, commands: dict[str, Any]) -> None:
    """Writes the plan and the commands that ran it."""
    write_json(path, {"plan": dataclasses.asdict(plan), **commands})


def read_plan(path: pathlib.Path) -> tuple[Plan, dict[str, Any]]:
    """Reads what `write_plan` wrote: the plan, and the commands that ran it.

    Raises:
      InputError: the file was not written by `write_plan`.
    """
    try:
        commands = read_json(path)
        return plan_of(commands.pop("plan")), commands
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error


def plan_of(fields: dict[str, Any]) -> Plan:
    """The plan with these fields, as `dataclasses.asdict` returns them."""
    treatments = [
        Treatment(**(treatment | {"paper": treatment["paper"] and Printed(**treatment["paper"])}))
        for treatment in fields["treatments"]
    ]
    hypotheses = []
    for hypothesis in fields["hypotheses"]:
        than, also = hypothesis.get("than"), hypothesis.get("also", ())
        pairs = {"than": than and tuple(than), "also": tuple(map(tuple, also))}
        hypotheses.append(Hypothesis(**(hypothesis | pairs)))
    own: dict[str, Any] = {name: tuple(fields.get(name, ())) for name in ("seeds", "baselines")}
    own |= {"treatments": tuple(treatments), "hypotheses": tuple(hypotheses)}
    return Plan(**fields | own)
