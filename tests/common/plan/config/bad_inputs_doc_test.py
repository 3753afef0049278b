"""Checks that docs/generated/bad-inputs.md shows the rows of bad_inputs.json and of tests/integration/bad_files.py.

`bad_inputs_doc_test.py --write` updates these parts of the page.
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import SOURCE

sys.path.insert(0, str(SOURCE / "tests" / "integration"))
import bad_files  # noqa: E402

PAGE = SOURCE / "docs" / "generated" / "bad-inputs.md"


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def code(text):
    return f"`{cell(text)}`" if text else ""


def table(rows):
    lines = ["| what is wrong | input | exit code | key | value | the message says |", "|---|---|---|---|---|---|"]
    for row in rows:
        given = " ⏎ ".join(row["lines"] + [" ".join(row.get("args", []))] if row.get("args") else row["lines"])
        lines.append(
            f"| {cell(row['name'])} | {code(given)} | {row.get('exit_code', 2)} | {code(row['key'])} | {code(row['value'])} "
            f"| {cell(row['suggestion'])} |"
        )
    return "\n".join(lines) + "\n"


def files_table():
    lines = ["| what is wrong | exit code | key | the message says |", "|---|---|---|---|"]
    for name, _, key, expected in bad_files.CASES:
        lines.append(f"| {cell(name)} | 2 | {code(key)} | {cell(' … '.join(expected))} |")
    return "\n".join(lines) + "\n"


def replace(page, name, text):
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    start = page.index(begin) + len(begin)
    return page[:start] + text + page[page.index(end) :]


def main():
    rows = json.loads((SOURCE / "tests/common/plan/config/bad_inputs.json").read_text())
    page = PAGE.read_text()
    fresh = replace(replace(page, "configurations", table(rows)), "files", files_table())
    if "--write" in sys.argv:
        PAGE.write_text(fresh)
    elif fresh != page:
        print("docs/generated/bad-inputs.md is not what the tables give: run tests/common/plan/config/bad_inputs_doc_test.py --write")
        return 1
    print(f"{len(rows)} configurations, {len(bad_files.CASES)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
