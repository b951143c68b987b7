"""A paper's printed tables, tested again from their means and standard deviations."""

from posattn_jax.analysis.findings import number
from posattn_jax.analysis.markdown_table import table
from posattn_jax.analysis.plan import Plan, Treatment
from posattn_jax.analysis.statistics import Comparison, Sample, compare


def of_printed(treatment: Treatment, control: Treatment) -> Comparison:
    """The comparison of two treatments as printed, two-sided."""
    samples = [Sample(p.n, p.mean, p.std) for p in (treatment.paper, control.paper) if p is not None]
    return compare(samples, "two-sided")


def compose(plan: Plan) -> str:
    """What the printed figures give, as a table in Markdown, and the plan's note on it."""
    rows = []
    for hypothesis in plan.hypotheses:
        treatment, control = plan.treatment(hypothesis.treatment), plan.treatment(hypothesis.control)
        if treatment.paper is None or control.paper is None:
            continue
        c = of_printed(treatment, control)
        printed = "-" if hypothesis.paper_p is None else number(hypothesis.paper_p)
        row = [f"{treatment.name} - {control.name}", f"{c.effect:+.4f}", printed, number(c.p_two_sided)]
        rows.append([*row, f"{c.effect_size:+.2f}", f"{c.power:.2f}", f"{c.runs_needed:.0f}"])
    header = ["difference", "effect", "p printed", "p from its table", "d", "power", "runs for 80%"]
    return "\n\n".join(part for part in (table(header, rows), plan.paper_note) if part)
