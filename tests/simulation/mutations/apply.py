"""Copies sources with mutations in them, each guarded by a switch, so that one build has all of them and a test
activates one at a time.

  apply.py --source ROOT --out FOLDER --mutations FILE.toml... [--list] -- SOURCE...

Each SOURCE, a path below ROOT, is copied to the same path below FOLDER; lines keep their numbers. With --list,
FOLDER/mutations.cc is written instead: the list of mutations for mutations.h, all of which must belong to these
sources. A mutation in a TOML file:

  [[mutation]]
  name = "NoStopDeadline"
  what = "nothing bounds how long an attempt stops"   # A clause for messages and tables.
  file = "controller/core/deadlines.cc"
  function = "set_stop_deadline"                      # Optional: search only in functions of this name.
  insert = "return;"                                  # Statements; after or before = "TEXT", or at the function's start.

Instead of `insert`: `remove = "STATEMENT;"`, or `expression = "TEXT"` with `becomes = "TEXT"`. A second edit of the
same mutation follows as [[mutation.also]] without name and what. Each text must be found exactly once in its source.
Spaces, line breaks and comments in between do not count, and an expression does not match the end of a longer one, such
as `b.c` in `a.b.c`.
"""

import argparse
import json
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

TEXT_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*')
TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\w+|[^\w\s]')
FORMS = ({"insert", "after"}, {"insert", "before"}, {"insert"}, {"remove"}, {"expression", "becomes"})


class MutationError(Exception):
    """Names the mutation and its file."""


@dataclass
class Change:
    """Replaces a file's text from `begin` to `end` with `text`."""
    name: str
    begin: int
    end: int
    text: str


def without_comments(text):
    """Returns the text with comments replaced by blanks, so that offsets stay the same."""
    return TEXT_OR_COMMENT.sub(lambda found: found[0] if found[0].startswith('"') else " " * len(found[0]), text)


def pattern(anchor):
    """Returns a regular expression for the anchor's tokens, with any white space in between."""
    tokens = TOKEN.findall(anchor)
    words = re.compile(r"\w")
    result = r"(?<![\w.])(?<!->)(?<!::)" if words.match(tokens[0]) else ""
    for before, token in zip([""] + tokens, tokens):
        both_words = words.match(before) and words.match(token)
        result += (r"\s+" if both_words else r"\s*" if before else "") + re.escape(token)
    return re.compile(result + (r"(?!\w)" if words.match(tokens[-1]) else ""))


def bodies(text, function):
    """Returns [(begin, end)]: from the first statement of each function of this name to after its closing brace."""
    definition = re.compile(rf"^\S[^;{{}}]*?\b{re.escape(function)}\s*\([^;{{}}]*\{{", re.MULTILINE)
    found = [(match.end(), text.index("\n}", match.end()) + 2) for match in definition.finditer(text)]
    if not found:
        raise MutationError(f"no function is named {function}")
    return found


def place(text, scopes, anchor):
    """Returns the (begin, end) of the anchor's only match."""
    found = [match.span() for scope in scopes for match in pattern(anchor).finditer(text, *scope)]
    if len(found) != 1:
        raise MutationError(f"found {len(found)} times, not once: {anchor}")
    return found[0]


def change_of(text, name, edit):
    """Returns the change that one edit makes to a source."""
    code = without_comments(text)
    keys = edit.keys() - {"file", "function"}
    if keys not in FORMS:
        raise MutationError(f"this is not a form of an edit: {', '.join(sorted(keys))}")
    scopes = bodies(code, edit["function"]) if "function" in edit else [(0, len(code))]
    guard = f'::titan::simulation::mutated("{name}")'
    if "remove" in edit:
        begin, end = place(code, scopes, edit["remove"])
        return Change(name, begin, end, f"{{ if (!{guard}) {{ {text[begin:end]} }} }}")
    if "becomes" in edit:
        begin, end = place(code, scopes, edit["expression"])
        return Change(name, begin, end, f"({guard} ? ({edit['becomes']}) : ({text[begin:end]}))")
    inserted = f" if ({guard}) {{ {edit['insert']} }} "
    if "before" in edit:
        at = place(code, scopes, edit["before"])[0]
    elif "after" in edit:
        at = place(code, scopes, edit["after"])[1]
    elif "function" in edit and len(scopes) == 1:
        at = scopes[0][0]
    else:
        raise MutationError("without after or before, insert needs the name of exactly one function")
    return Change(name, at, at, inserted)


def applied(text, changes):
    """Returns the source with all its changes."""
    ordered = sorted(changes, key=lambda change: change.begin)
    for first, second in zip(ordered, ordered[1:]):
        if second.begin < first.end:
            raise MutationError(f"it changes what {first.name} changes, too")
    for change in reversed(ordered):
        text = text[:change.begin] + change.text + text[change.end:]
    return text


def read(paths):
    """Returns all mutations, in the order of the files."""
    mutations = [mutation for path in paths for mutation in tomllib.loads(Path(path).read_text())["mutation"]]
    names = [mutation["name"] for mutation in mutations]
    for name in names:
        if names.count(name) > 1:
            raise MutationError(f"mutation {name}: its name is used twice")
    return mutations


def edits_of(mutation):
    return [{key: value for key, value in mutation.items() if key not in ("name", "what", "also")}, *mutation.get("also", [])]


def check_files(mutations, sources):
    """Checks that each edit names one of the sources."""
    for mutation in mutations:
        for edit in edits_of(mutation):
            if edit.get("file") not in sources:
                raise MutationError(f"mutation {mutation['name']} of {edit.get('file', 'no file')}: it is not one of the sources that are mutated")


def mutate(path, text, mutations):
    """Returns the source with all edits for this path."""
    changes = []
    for mutation in mutations:
        for edit in edits_of(mutation):
            if edit.get("file") != path:
                continue
            try:
                changes.append(change_of(text, mutation["name"], edit))
                applied(text, changes)
            except MutationError as error:
                raise MutationError(f"mutation {mutation['name']} of {path}: {error}") from None
    return applied(text, changes)


def listed(mutations):
    """Returns the text of mutations.cc."""
    rows = "".join(f"      {{{json.dumps(mutation['name'])}, {json.dumps(mutation['what'])}}},\n" for mutation in mutations)
    return ("// Written by tests/simulation/mutations/apply.py.\n\n#include \"tests/simulation/mutations/mutations.h\"\n\n"
            f"namespace titan::simulation {{\n\nstd::vector<Mutation> mutations() {{\n  return {{\n{rows}  }};\n}}\n\n}}  // namespace titan::simulation\n")


def write(path, text):
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mutations", nargs="+", required=True)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("sources", nargs="+")
    arguments = parser.parse_args()
    try:
        mutations = read(arguments.mutations)
        if arguments.list:
            check_files(mutations, arguments.sources)
            return write(arguments.out / "mutations.cc", listed(mutations))
        for path in arguments.sources:
            write(arguments.out / path, mutate(path, (arguments.source / path).read_text(), mutations))
    except MutationError as error:
        sys.exit(f"apply.py: {error}")


if __name__ == "__main__":
    main()
