"""docs/generated/reliability.md, made of the rows and of docs/generated/reliability-results.json."""

VERDICTS = {"holds": "holds", "broken": "**broken**", "not run": "not run"}

INTRODUCTION = """# Reliability: faults, what must hold, and figures

Made by `tests/faults/measure.sh`: do not edit. Each row makes one kind of fault on real processes on one machine (controller, workers, shims,
ranks that train the tiny job of `configs/llama3_tiny.toml` over loopback), asserts what must hold, and measures. A broken invariant is a fault of
Titan. A figure beside its target depends on the machine and on what else it does: each row says when, where and under which load it was measured.
"Elsewhere" is what the sources and pages of other systems say of themselves; nothing of it was measured here unless the row says so.

```text
tests/faults/measure.sh                  # every row, one after another
tests/faults/measure.sh 1 3-5 soak=20    # some rows; soak=MINUTES
tests/faults/measure.sh --list           # what there is
tests/faults/measure.sh --render         # this page again, from reliability-results.json
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
    return words if not missed or result["verdict"] == "broken" else f"{words}; {missed} of its targets missed"


def targets(result):
    return "; ".join(f"{f['name']} {f['target']}" for f in (result or {}).get("figures", []) if f["target"])


def measured(result):
    if result is None:
        return ""
    if result["verdict"] != "holds":
        return result["why"]
    shown = [f for f in result["figures"] if f["target"]] or result["figures"]
    return "; ".join(f"{f['name']} {amount(f)}" for f in shown)


def circumstances(result):
    """When, where and under which load."""
    return (f"{result['date']}, {result['machine']}, load {result['load']:g} before it, commit {result['commit']}, {result['seconds']:g} s"
            + (", short form" if result.get("short") else ""))


def figures_table(figures):
    lines = ["| figure | measured | target | |", "|---|---|---|---|"]
    for f in figures:
        met = {None: "", True: "met", False: "**missed**"}[f["met"]]
        lines.append(f"| {cell(f['name'])} | {cell(amount(f))} | {cell(f['target'])} | {met} |")
    return lines


def section(row, result):
    lines = [f"## {row.number}. {row.title[0].upper()}{row.title[1:]}", "",
             f"How: {row.how}. Must hold: {row.invariant}. Elsewhere: {row.anchor}. In CI: `{row.ci}`. Alone: "
             f"`tests/faults/measure.sh {row.number}`.", ""]
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
             "The tiny job under one random fault a minute: a rank is killed or stopped, a worker daemon is killed or stopped for 3 s, the "
             "controller is killed, a node is lost while another one is spare. Must hold: every loss is the undisturbed run's bit for bit, and "
             "no commit is lost. ETTR is the part of the time in which steps were trained that no attempt had reached before. "
             "Alone: `tests/faults/measure.sh soak=20`.", ""]
    if result is None:
        return [*lines, "Not measured yet.", ""]
    if result["why"]:
        lines += [f"{verdict(result)}: {result['why']}", ""]
    lines += [*figures_table(result["figures"]), "", *(f"- {note}" for note in result["notes"]), ""]
    return [*lines, f"{circumstances(result)}.", ""]


def page(rows, results):
    measured_rows = results.get("rows", {})
    lines = [INTRODUCTION, "| | fault | how | elsewhere | targets | measured | |", "|---|---|---|---|---|---|---|"]
    for row in rows.values():
        result = measured_rows.get(str(row.number))
        lines.append("| " + " | ".join(map(cell, [row.number, row.title, row.how, row.anchor, targets(result), measured(result),
                                                  verdict(result)])) + " |")
    lines.append("")
    lines += soak_section(results.get("soak"))
    for row in rows.values():
        lines += section(row, measured_rows.get(str(row.number)))
    return "\n".join(lines).rstrip() + "\n"
