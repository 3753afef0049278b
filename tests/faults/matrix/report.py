"""Generates docs/generated/reliability.md from the rows and docs/generated/reliability-results.json."""

import re

VERDICTS = {"holds": "holds", "broken": "**broken**", "not run": "not run"}

INTRODUCTION = """# Reliability: faults, invariants and measurements

This page shows what Titan does under each kind of fault, and how fast. Each row makes a fault on real processes of one machine (controller,
workers, shims, and ranks that train `configs/llama3_tiny.toml` over loopback), asserts what must hold, and measures.

- A broken invariant is a bug in Titan. A missed target is only reported, because times depend on the machine: each section says when, where and
  under which load it was measured.
- "Other systems" is what their sources and documentation say. Nothing of it was measured here unless the row says so.

`tests/faults/measure.sh` generates this page; do not edit it:

```text
tests/faults/measure.sh                  # every row, one after another
tests/faults/measure.sh 1 3-5 soak=20    # some rows; soak=MINUTES
tests/faults/measure.sh --list           # list the rows
tests/faults/measure.sh --render         # generate this page again from reliability-results.json
```
"""


def number(value):
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.2f}"


def amount(figure):
    return f"{number(figure['value'])} {figure['unit']}".strip()


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def verdict(result):
    if result is None:
        return "not measured yet"
    words = VERDICTS[result["verdict"]]
    missed = sum(figure["met"] is False for figure in result["figures"])
    return words if not missed or result["verdict"] == "broken" else f"{words}; {missed} {'target' if missed == 1 else 'targets'} missed"


def measured(result):
    """Returns the figures with a target, or all of them if none has one."""
    if result is None:
        return ""
    if result["verdict"] != "holds":
        return result["why"]
    shown = [f for f in result["figures"] if f["target"]] or result["figures"]
    return "; ".join(f"{f['name']} {amount(f)}" + (f" ({f['target']})" if f["target"] else "") for f in shown)


def circumstances(result):
    """Returns date, machine, load and commit of a measurement."""
    return (f"Measured {result['date']}, {result['machine']}, load {result['load']:g} before the run, commit {result['commit']}, "
            f"{result['seconds']:g} s" + (", short form" if result.get("short") else ""))


def figures_table(figures):
    lines = ["| figure | measured | target | |", "|---|---|---|---|"]
    for f in figures:
        met = {None: "", True: "met", False: "**missed**"}[f["met"]]
        lines.append(f"| {cell(f['name'])} | {cell(amount(f))} | {cell(f['target'])} | {met} |")
    return lines


def heading(row):
    return f"{row.number}. {row.title[0].upper()}{row.title[1:]}"


def link(row):
    """Returns the row's title, linked to its section by the anchor that Markdown readers make from the heading."""
    anchor = re.sub(r"[^\w\- ]", "", heading(row).lower()).replace(" ", "-")
    return f"[{row.title}](#{anchor})"


def section(row, result):
    lines = [f"## {heading(row)}", "", f"- **Fault**: {row.how}.", f"- **Must hold**: {row.invariant}.", f"- **Other systems**: {row.anchor}.",
             f"- **In CI**: `{row.ci}`.", ""]
    if result is None:
        return [*lines, "Not measured yet.", ""]
    if result["why"]:
        lines += [f"{verdict(result)}: {result['why']}", ""]
    if result["figures"]:
        lines += [*figures_table(result["figures"]), ""]
    lines += [*(f"- {note}" for note in result["notes"]), *([""] if result["notes"] else [])]
    return [*lines, f"{circumstances(result)}.", ""]


def soak_section(result):
    lines = ["## Soak", "",
             "- **Fault**: one random fault per minute. A rank is killed or stopped, a worker daemon is killed or stopped for 3 s, the controller is "
             "killed, or a node is lost while another is spare.",
             "- **Must hold**: every loss equals the undisturbed run's bit for bit, and no commit is lost.",
             "- **ETTR** is the share of the time in which steps were trained that no attempt had reached before.", ""]
    if result is None:
        return [*lines, "Not measured yet.", ""]
    if result["why"]:
        lines += [f"{verdict(result)}: {result['why']}", ""]
    lines += [*figures_table(result["figures"]), "", *(f"- {note}" for note in result["notes"]), ""]
    return [*lines, f"{circumstances(result)}.", ""]


def page(rows, results):
    measured_rows = results.get("rows", {})
    lines = [INTRODUCTION, "| | fault | measured (target) | verdict |", "|---|---|---|---|"]
    for row in rows.values():
        result = measured_rows.get(str(row.number))
        lines.append("| " + " | ".join(map(cell, [row.number, link(row), measured(result), verdict(result)])) + " |")
    lines.append("")
    lines += soak_section(results.get("soak"))
    for row in rows.values():
        lines += section(row, measured_rows.get(str(row.number)))
    return "\n".join(lines).rstrip() + "\n"
