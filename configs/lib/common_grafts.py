"""Parts that are added to a trained BERT without changing its function at first, and their sweep (docs/grafts.md)."""

from typing import Any

from configs.lib import common, common_bert
from posattn_jax import GaussianSpan
from posattn_jax.analysis.plan import PAPER_SEEDS, Claim, Hypothesis, Plan, Treatment
from posattn_jax.config.parts import part

LABELS = {
    "unchanged": "Unchanged",
    "composite": "Composite terms added",
    "dynamic": "Dynamic convolution added",
    "span": "Learned span added",
    "depthwise": "Depthwise values added",
    "bare": "Without abs positions",
    "bare_composite": "Composite terms instead of abs positions",
}
CLAIMS: tuple[Claim, ...] = (
    ("composite terms that are added are above the unchanged model", "composite", "unchanged", "greater"),
    ("a dynamic convolution that is added is above the unchanged model", "dynamic", "unchanged", "greater"),
    ("a learned span that is added is above the unchanged model", "span", "unchanged", "greater"),
    ("depthwise values that are added are above the unchanged model", "depthwise", "unchanged", "greater"),
    ("taking absolute positions away is below the unchanged model", "bare", "unchanged", "less"),
    ("without absolute positions, composite terms are above none", "bare_composite", "bare", "greater"),
)
# The learning rate of parameters that begin at 0: with that of fine-tuning, they would hardly move.
RATE = {"optimizer.terms_learning_rate": 1e-3}


def fields(name: str) -> dict[str, Any]:
    """The fields that one of `LABELS` changes in an imported BERT. Kernels have 17 tokens, as in the paper."""
    without = {"model.absolute_positions": False} if name.startswith("bare") else {}
    match name.removeprefix("bare_"):
        case "composite" | "dynamic" as kind:
            found = common_bert.fields(kind)
            found[common.TERMS]["dynamic_convolution"].encoding.embedding_init = "zeros"
            return without | found | RATE
        case "depthwise":
            found = common_bert.fields("depthwise")
            found[f"{common.ATTENTION}.values"].convolution.kernel_init = "zeros"
            return found | RATE
        case "span":
            # With 64 tokens, 1 / sigma^2 = 8 gives a half-span of 48. An update moves it by at most the rate.
            wide = part(GaussianSpan, covariance="precision", initial_sigma=1000.0)
            return {common.SPAN: wide, "optimizer.span_learning_rate": 0.05}
    return without


def sweep(
    start: str, tasks: dict[str, str], recipes: dict[str, dict[str, Any]], response: str, axis: str | None = None
) -> Plan:
    """A sweep of each of `LABELS` on each of the tasks, which have a name, a label and a recipe.

    Its hypotheses are about the mean over the tasks, if there are several, and about each of them.
    """
    treatments, hypotheses = [], []
    for task, title in tasks.items():
        for name, label in LABELS.items():
            own = {"task.pretrained": start} | recipes[task] | fields(name)
            treatments.append(Treatment(f"{task}_{name}", f"{label}, {title}", own))
    for claim, name, control, direction in CLAIMS if len(tasks) > 1 else ():
        pair, *also = ((f"{task}_{name}", f"{task}_{control}") for task in tasks)
        hypotheses.append(Hypothesis(f"On average: {claim}", *pair, direction, also=tuple(also)))
    for task, title in tasks.items():
        for claim, name, control, direction in CLAIMS:
            hypotheses.append(Hypothesis(f"{title}: {claim}", f"{task}_{name}", f"{task}_{control}", direction))
    return Plan(
        "Does what knows positions help a BERT that others have trained?",
        tuple(treatments),
        tuple(hypotheses),
        seeds=PAPER_SEEDS[:3],
        response=response,
        epoch="last",
        axis=axis,
    )
