"""What a compiled kernel does to shared memory, and in which order, read from its PTX.

  python -m tests.support.ptx FOLDER    # prints what is missing in its *.ptx

A warpgroup's threads share memory with each other (`st.shared`, `ld.shared`, `ldmatrix`), with copies (`cp.async`, to
and from other memory) and with its matrix unit (`wgmma`, which reads). PTX orders none of these by itself.
"""

import pathlib
import re
import sys

# The first that matches. Places of what is skewed, and sums, are written by two, and read; operands are written by one.
EVENTS = {
    "barrier": r"bar(rier)?(\.cta)?\.sync",
    "announced": r"mbarrier\.arrive\.expect_tx",
    "awaited": r"mbarrier\.try_wait",
    "fence": r"fence\.proxy\.async",
    "bulk copy": r"cp\.async\.bulk\.tensor.*mbarrier",
    "part awaited": r"cp\.async\.wait_(group|all)",
    "part of a copy": r"cp\.async\.c[ag]\.",
    "product": r"wgmma\.mma_async",
    "done": r"wgmma\.wait_group",
    "write of two": r"st\.shared\.(v2|b64)",
    "write": r"st\.shared|stmatrix",
    "read of an operand": r"ldmatrix",
    "read": r"ld\.shared",
}
COPIES, WRITES = {"bulk copy", "part of a copy"}, {"write", "write of two"}
READS = {"read", "read of an operand", "product"}
# What threads did before their last barrier, if at all, where an event comes.
APART = dict.fromkeys(COPIES, READS | WRITES) | {
    "write": READS - {"product"},
    "write of two": {"read"},
    "read": WRITES,
    "read of an operand": {"write", "part awaited"},
    "product": {"write", "fence"},
}


def events(ptx: str) -> list[str]:
    """The names of what is in `EVENTS`, one an instruction, in the order of the text; the longest loop comes twice."""
    lines = ptx.splitlines()
    labels = {line.split(":")[0]: number for number, line in enumerate(lines) if line.startswith("$")}
    branches = ((number, re.search(r"\bbra(?:\.uni)?\s+(\$\w+)", line)) for number, line in enumerate(lines))
    back = [(labels[found[1]], number) for number, found in branches if found and labels[found[1]] < number]
    start, stop = max(back, key=lambda loop: loop[1] - loop[0], default=(0, 0))
    named = (
        next((name for name, text in EVENTS.items() if re.search(text, line)), None)
        for line in lines[:stop] + lines[start:]
    )
    return [name for name in named if name]


def hazards(found: list[str]) -> list[str]:
    """What is not ordered, one line each.

    Between what `APART` names there is a barrier of all threads. Before memory is written that a product may read, the
    product is done. There is one wait for every copy that is announced.
    """
    told, since, running = [], set(), False
    for number, event in enumerate(found):
        if early := APART.get(event, set()) & since:
            told.append(f"event {number}, {event}: no barrier since {', '.join(sorted(early))}")
        if running and event in COPIES | WRITES:
            told.append(f"event {number}, {event}: a product is not done")
        running = event == "product" or (running and event != "done")
        since = set() if event == "barrier" else since | {event}
    counts = {name: found.count(name) for name in ("bulk copy", "announced", "awaited")}
    return told + [f"not as many: {counts}"] * (len(set(counts.values())) > 1)


def main(folder: str) -> None:
    for path in sorted(pathlib.Path(folder).glob("*.ptx")):
        found = events(path.read_text())
        print(path.name, {name: found.count(name) for name in EVENTS if name in found}, *hazards(found), sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1])
