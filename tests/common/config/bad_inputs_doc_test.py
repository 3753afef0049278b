"""docs/bad-inputs.md shows the rows of bad_inputs.json. `bad_inputs_doc_test.py --write` writes that part of the page anew."""
import json
import os
import pathlib
import sys

SOURCE = pathlib.Path(os.environ.get("TITAN_SOURCE", pathlib.Path(__file__).parents[3]))
PAGE = SOURCE / "docs" / "bad-inputs.md"
BEGIN, END = "<!-- configurations: begin -->\n", "<!-- configurations: end -->\n"


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


def main():
    rows = json.loads((SOURCE / "tests/common/config/bad_inputs.json").read_text())
    page = PAGE.read_text()
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    fresh = page[:start] + table(rows) + page[end:]
    if "--write" in sys.argv:
        PAGE.write_text(fresh)
    elif fresh != page:
        print("docs/bad-inputs.md is not what bad_inputs.json gives: run tests/common/config/bad_inputs_doc_test.py --write")
        return 1
    print(f"{len(rows)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
