"""Checks the project's English: the habits that docs/contributing/glossary.md drops, comments that open with a fragment, tensors in headers without a shape,
and pages that are too long. Sentences that keep such a word on purpose are listed in prose_kept.txt: PATH: part of the line."""

import re
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import SOURCE
from text import tracked

GLOSSARY = "docs/contributing/glossary.md"
# What to write instead is in the glossary. Each is a whole word or phrase that plain English of the field has no use for.
HABITS = {
    r"\bwhoever\b": "who, the user, any process",
    r"\bwhose job it is\b": "the submitting user",
    r"\bforet(?:ell|ells|elling|old)\b": "predict",
    r"\bthrice\b": "three times",
    r"\banew\b": "again",
    r"\bby chance\b": "at random",
    r"\bin turns\b": "alternating",
    r"\bnothing is said\b": "prints nothing",
    r"\bof (?:one's|its|their|his|your|our) own\b": "own, separate, custom",
    r"\bcannot go on\b": "cannot resume, cannot continue",
    r"\bgo(?:es|ing)? on\b|\bwent on\b": "continue, resume",
    r"\bbeside\b": "next to, compared with, alongside",
    r"\bbehind (?:it|them|each|what|that)\b": "after",
    r"(?<!\bthere )\b(?:is|are|was) no (?!longer\b|more\b|less\b|such\b|one\b|need\b|way\b|other\b|limit\b|difference\b)[a-z]+": "is not a",
}
ANY_HABIT = re.compile("|".join(HABITS), re.IGNORECASE)
FRAGMENT = re.compile(r"(?:Of|What|Who|Whose|As) ")
COMMENT = re.compile(r"(?:^|\s)///?\s*(.*)")
SCRIPT_COMMENT = re.compile(r"(?:^|\s)#\s(.*)")
TENSOR = re.compile(r"\bat::Tensor\b")
SHAPE = re.compile(r"//.*(?:\[[^\]]*\]|\bshape|\bscalar)", re.IGNORECASE)
NEAR = 12  # Lines above a declaration that may state the shape of its tensors.
CODE = (".h", ".cc", ".cu", ".cuh")
TEXT = (*CODE, ".py", ".sh", ".md", ".proto", ".toml", ".cmake", ".txt", ".yml")
# Only the comments of these are checked: their strings hold the words of data and of other programs.
COMMENTS_ONLY = ("tests/", "deploy/")
SKIPPED = ("tests/peer/", "tests/tidy/prose", "tests/controller/store/data/", "docs/generated/", "deploy/debian/", "deploy/requirements/")
LONGEST_PAGE = 1500
REFERENCES = {"docs/metrics.md", "docs/third-party.md", "docs/contributing/glossary.md"}


def held():
    for path in tracked():
        name = path.relative_to(SOURCE).as_posix()
        if path.suffix in TEXT and name != GLOSSARY and not name.startswith(SKIPPED):
            yield name, path


def prose(name, path):
    """Yields (line number, text) of each line with prose."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not name.startswith(COMMENTS_ONLY) or path.suffix == ".md":
            yield number, line
            continue
        found = (COMMENT if path.suffix in CODE else SCRIPT_COMMENT).search(line)
        if found:
            yield number, found[1]


def kept():
    """Returns {path: [part of a line that stays]}."""
    lines = [line for line in (Path(__file__).parent / "prose_kept.txt").read_text().splitlines() if line and not line.startswith("#")]
    result = {}
    for line in lines:
        path, part = line.split(": ", 1)
        result.setdefault(path, []).append(part)
    return result


def habits(line):
    if not ANY_HABIT.search(line):
        return []
    return [f'"{found[0]}" (write: {instead})' for pattern, instead in HABITS.items() for found in [re.search(pattern, line, re.IGNORECASE)] if found]


def openings(text):
    """Yields (line number, first words) of each comment: a block of // lines counts once."""
    within = False
    for number, line in enumerate(text.splitlines(), 1):
        found = COMMENT.search(line)
        whole = line.lstrip().startswith("//")
        if found and not (within and whole):
            yield number, found[1]
        within = bool(found) and whole


def shapeless(text):
    """Yields line numbers of tensors in public declarations without a shape in a comment on the line, above it or on the next two lines."""
    lines, private = text.splitlines(), False
    for number, line in enumerate(lines, 1):
        private = line.strip() == "private:" or private and not line.startswith("}")
        near = lines[max(0, number - 1 - NEAR):number + 2]
        if not private and TENSOR.search(line.split("//")[0]) and not any(SHAPE.search(one) for one in near):
            yield number


def words(page):
    """Counts words of prose, without tables and listings."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    return sum(len(line.split()) for line in text.splitlines() if not line.startswith("|"))


class Prose(unittest.TestCase):
    def test_habits(self):
        exceptions, found = kept(), []
        for name, path in held():
            for number, line in prose(name, path):
                if not any(part in line for part in exceptions.get(name, [])):
                    found += [f"{name}:{number}: {habit}" for habit in habits(line)]
        self.assertEqual([], found, f"see {GLOSSARY}; a sentence that needs such a word goes to tests/tidy/prose_kept.txt")

    def test_exceptions_are_needed(self):
        unneeded = [f"{name}: {part}" for name, parts in kept().items() for part in parts
                    if not any(part in line and habits(line) for line in (SOURCE / name).read_text().splitlines())]
        self.assertEqual([], unneeded)

    def test_comments_are_sentences(self):
        found = [f"{name}:{number}: {text[:60]}" for name, path in held() if path.suffix in CODE
                 for number, text in openings(path.read_text()) if FRAGMENT.match(text)]
        self.assertEqual([], found, f"a comment is a sentence with a verb: see {GLOSSARY}")

    def test_tensors_have_shapes(self):
        found = [f"{name}:{number}" for name, path in held() if name.startswith("worker/rank/") and path.suffix == ".h"
                 for number in shapeless(path.read_text())]
        self.assertEqual([], found, "say the shape of each tensor in the comment, such as [tokens, dim]")

    def test_pages_are_short(self):
        pages = {name: words(path.read_text()) for name, path in held()
                 if path.suffix == ".md" and name not in REFERENCES}
        self.assertEqual({}, {name: count for name, count in pages.items() if count > LONGEST_PAGE}, f"at most {LONGEST_PAGE} words: split the page by question")

    def test_checks_find_violations(self):
        self.assertEqual(2, len(habits("Whoever goes on")))
        self.assertEqual([], habits("There is no longer one, nor is no more such a thing."))
        self.assertEqual([(1, "Of x."), (3, "Who")], list(openings("// Of x.\n// As y.\nint a;  // Who\n")))
        self.assertEqual([3], list(shapeless("\n" * 2 + "void f(at::Tensor x);\n\n\n" + "\n" * NEAR + "at::Tensor y;  // [tokens, dim]\n")))
        self.assertEqual([], list(shapeless("class A {\n private:\n  at::Tensor x;\n};\n")))
        self.assertEqual([3], list(shapeless("class A {\n public:\n  at::Tensor x;\n};\n")))
        self.assertEqual(2, words("two words\n| a | b |\n```sh\nnot these\n```\n"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
