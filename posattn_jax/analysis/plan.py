"""What a sweep asks: treatments, the seeds of each, and hypotheses about them, with what a paper printed."""

import dataclasses
import math
import pathlib
import re
from typing import Any, Literal, get_args

from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json, write_json

Alternative = Literal["greater", "less", "two-sided"]

# The random states of Alfons 2022 (Table 4).
PAPER_SEEDS = (9188, 2755, 361, 1321, 833)


@dataclasses.dataclass(frozen=True)
class Printed:
    """Figures of a treatment as a paper prints them: the largest, the mean and the standard deviation of n runs."""

    max: float
    mean: float
    std: float
    n: int = 5


@dataclasses.dataclass(frozen=True)
class Treatment:
    """One way to train.

    Attributes:
      name: of its folder: letters, digits, "_", "-" and ".".
      label: what tables and figures call it.
      fields: the config's fields that set it apart, such as {"model.block.attention.span": None}; a part as a dict.
      paper: what the paper printed of it.
      num_seeds: how many of the sweep's seeds it is trained with, the first of them; None: all.
      family: what it is one of, in a few words: a figure of many treatments has a colour for each.
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

    With `than`, two other treatments: H1 is about how far the first two means are apart, and the other two.

    Attributes:
      claim: H1 in words.
      treatment, control: names of treatments.
      alternative: the direction that the claim states.
      paper_p: the p-value that the paper printed, two-sided.
      than: (treatment, control): the difference of these means, which the first difference is compared with.
      margin: by how much the treatment may be worse: H1 is that it is less than control + margin ("less"), or greater
        than control - margin ("greater").
    """

    claim: str
    treatment: str
    control: str
    alternative: Alternative = "two-sided"
    paper_p: float | None = None
    than: tuple[str, str] | None = None
    margin: float = 0.0

    @property
    def border(self) -> float:
        """The difference of the means that H1 is on one side of."""
        return self.margin if self.alternative == "less" else -self.margin

    @property
    def names(self) -> tuple[str, ...]:
        """Of all treatments that it is about."""
        return (self.treatment, self.control, *(self.than or ()))


@dataclasses.dataclass(frozen=True)
class Plan:
    """A sweep: every treatment with every seed.

    Attributes:
      question: what it is to answer.
      treatments: in the order of tables and figures.
      hypotheses: those stated before the runs; their p-values are corrected together (Holm).
      seeds: of the split, the initialisation, dropout and the order of the data.
      evaluate: fields under which every run is evaluated once more after training, such as {"data.pool": 1} for a
        larger grid; then that evaluation is the response. Empty: the response is that of the best epoch.
      part: of the data, that such an evaluation is read from: "validation" or "test".
      baselines: the treatments that the translations of all others are tested against; empty: the first one.
      response: the validation metric that the sweep judges by.
      epoch: after which epoch: the "best", by validation, or the "last".
      axis: a field that treatments differ in, such as "model.num_blocks": a figure has the response against it, with a
        line for treatments that differ in nothing else, named by their label up to its last comma; or, where its values
        are names, a table has a row for them.
      source: the paper that the printed figures are from, and its data.
      paper_note: what a reader of its statistics should know.

    Raises:
      InputError: names that are not unique, not known or no folder's, or no treatment or seed at all.
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
            if hypothesis.margin and hypothesis.alternative == "two-sided":
                raise InputError(f'hypothesis "{hypothesis.claim}": margin={hypothesis.margin} needs a direction')
            if hypothesis.alternative not in get_args(Alternative):
                raise InputError(
                    f'hypothesis "{hypothesis.claim}": alternative="{hypothesis.alternative}": expected one of '
                    f"{', '.join(get_args(Alternative))}"
                )

    def seeds_of(self, treatment: Treatment) -> tuple[int, ...]:
        """The seeds that a treatment is trained with."""
        return self.seeds[: treatment.num_seeds]

    def treatment(self, name: str) -> Treatment:
        """The treatment of this name."""
        return next(treatment for treatment in self.treatments if treatment.name == name)

    @property
    def summarised(self) -> str:
        """The part of a run's summary that the sweep judges by, where it does not evaluate once more."""
        return "best" if self.epoch == "best" else "final"

    @property
    def of_translations(self) -> bool:
        """Whether runs are judged by their translations."""
        return self.response in ("bleu", "chrf")

    @property
    def lower_is_better(self) -> bool:
        """Whether the least response is the best, as of a loss."""
        return self.response in ("loss", "bits")

    @property
    def bounds(self) -> tuple[float, float]:
        """What no response is beyond, though the interval of a mean may be."""
        return (0.0, 1.0) if self.response == "accuracy" else (-math.inf, math.inf)

    def select(self, treatments: list[str] | None, seeds: list[int] | None) -> "Plan":
        """The part with these treatments and seeds, and the hypotheses between them; None: all.

        Raises:
          InputError: an unknown treatment, or nothing left.
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
        )


def write_plan(path: pathlib.Path, plan: Plan, commands: dict[str, Any]) -> None:
    """Writes the plan and how it was run."""
    write_json(path, {"plan": dataclasses.asdict(plan), **commands})


def read_plan(path: pathlib.Path) -> tuple[Plan, dict[str, Any]]:
    """What `write_plan` wrote: the plan, and how it was run.

    Raises:
      InputError: the file is not one of its.
    """
    try:
        commands = read_json(path)
        return plan_of(commands.pop("plan")), commands
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error


def plan_of(fields: dict[str, Any]) -> Plan:
    """The plan of these fields, as `dataclasses.asdict` gives them."""
    treatments = [
        Treatment(**(treatment | {"paper": treatment["paper"] and Printed(**treatment["paper"])}))
        for treatment in fields["treatments"]
    ]
    hypotheses = [
        Hypothesis(**(hypothesis | {"than": hypothesis.get("than") and tuple(hypothesis["than"])}))
        for hypothesis in fields["hypotheses"]
    ]
    lists = {name: tuple(fields.get(name, ())) for name in ("seeds", "baselines")}
    return Plan(**(fields | lists | {"treatments": tuple(treatments), "hypotheses": tuple(hypotheses)}))
