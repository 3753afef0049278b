"""Checks that every mutation matches its source once, and tests apply.py's output and errors."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import apply

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "testing"))
from paths import SOURCE

HERE = Path(__file__).resolve().parent
PLAIN = """// Comment: go(1);
void first(int left) {
  if (left > 0 &&  // Why.
      ready(left))
    return;
  total.left = left;
}

int Counter::second(int left) {
  go(left);
  return total.left;
}
"""
SWITCH = '::titan::simulation::mutated("M")'


def mutated(text=PLAIN, **edit):
    mutations = [{"name": "M", "what": "it fails", "file": "a.cc", **edit}]
    apply.check_files(mutations, ["a.cc"])
    return apply.mutate("a.cc", text, mutations)


class InTheTree(unittest.TestCase):
    def setUp(self):
        self.mutations = apply.read(sorted(HERE.glob("*.toml")))
        paths = {edit["file"] for mutation in self.mutations for edit in apply.edits_of(mutation)}
        self.sources = {path: (SOURCE / path).read_text() for path in paths if (SOURCE / path).exists()}

    def test_every_mutation_applies(self):
        apply.check_files(self.mutations, self.sources)
        for path, text in self.sources.items():
            with self.subTest(path):
                copy = apply.mutate(path, text, self.mutations)
                self.assertNotEqual(text, copy)
                self.assertEqual(text.count("\n"), copy.count("\n"), "the line numbers changed")

    def test_each_has_a_seed(self):
        seeds = {line.split()[0] for line in (HERE.parent / "planted_seeds.txt").read_text().splitlines()}
        self.assertEqual(seeds, {mutation["name"] for mutation in self.mutations})

    def test_the_page_has_a_row_for_each(self):
        page = (SOURCE / "docs/generated/planted-bugs.md").read_text()
        self.assertEqual([], [mutation["what"] for mutation in self.mutations if f"\n| {mutation['what']} | " not in page])


class Forms(unittest.TestCase):
    def test_insert(self):
        self.assertIn(f"left) {{ if ({SWITCH}) {{ return; }} \n  if (left", mutated(function="first", insert="return;"))
        self.assertIn(f"go(left); if ({SWITCH}) {{ stop(); }} \n", mutated(after="go(left);", insert="stop();"))
        self.assertIn(f" if ({SWITCH}) {{ stop(); }} go(left);", mutated(before="go(left); return", insert="stop();"))

    def test_remove(self):
        self.assertIn(f"{{ if (!{SWITCH}) {{ go(left); }} }}\n", mutated(remove="go(left);"))

    def test_expression(self):
        self.assertIn(f"if (({SWITCH} ? (true) : (left > 0)) &&  // Why.\n", mutated(expression="left > 0", becomes="true"))
        self.assertIn(f"return ({SWITCH} ? (0) : (total.left));", mutated(function="Counter::second", expression="total.left", becomes="0"))

    def test_two_places(self):
        text = mutated(function="first", insert="return;", also=[{"file": "a.cc", "remove": "go(left);"}])
        self.assertEqual(2, text.count(SWITCH))

    # Line breaks, spaces and comments between tokens do not matter.
    def test_layout_does_not_count(self):
        self.assertIn(f"if (({SWITCH} ? (false) : (left > 0 &&  // Why.\n      ready(left))))\n",
                      mutated(expression="left > 0 && ready( left )", becomes="false"))

    def test_the_end_of_a_longer_expression_does_not_count(self):
        text = "void f() {\n  go(left);\n  go(a.left, b->left, C::left, leftmost);\n}\n"
        self.assertIn(f"go(({SWITCH} ? (1) : (left)));", mutated(text, expression="left", becomes="1"))


class Errors(unittest.TestCase):
    def fails(self, words, **edit):
        with self.assertRaisesRegex(apply.MutationError, words) as caught:
            mutated(**edit)
        self.assertIn(f"mutation M of {edit.get('file', 'a.cc')}: ", str(caught.exception))

    def test_text_that_is_missing(self):
        self.fails(r"found 0 times, not once: come\(left\);", remove="come(left);")
        self.fails(r"found 0 times, not once: go\(1\);", remove="go(1);")  # Only a comment has it.
        # Only another function has it.
        self.fails(r"found 0 times, not once: go\(left\);", function="first", remove="go(left);")

    def test_text_that_occurs_twice(self):
        self.fails("found 2 times, not once: total.left", expression="total.left", becomes="0")

    def test_unknown_file(self):
        self.fails("not one of the sources", file="b.cc", insert="return;", function="first")

    def test_unknown_function(self):
        self.fails("no function is named third", function="third", insert="return;")
        self.fails("needs the name of exactly one function", insert="return;")

    def test_unknown_form(self):
        self.fails("not a form of an edit: becomes, exprssion", exprssion="left", becomes="0")

    def test_overlapping_edits(self):
        second = {"file": "a.cc", "function": "Counter::second", "expression": "left", "becomes": "0"}
        self.fails("changes what M changes", remove="go(left);", also=[second])

    def test_one_name_twice(self):
        with tempfile.TemporaryDirectory() as folder:
            listed = Path(folder) / "all.toml"
            listed.write_text('[[mutation]]\nname = "M"\n[[mutation]]\nname = "M"\n')
            with self.assertRaisesRegex(apply.MutationError, "mutation M: its name is used twice"):
                apply.read([listed])


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "a.cc").write_text(PLAIN)
        (self.folder / "b.cc").write_text(PLAIN)

    def run_with(self, file, *words):
        listed = self.folder / "all.toml"
        listed.write_text(f'[[mutation]]\nname = "M"\nwhat = "it \\"fails\\""\nfile = "{file}"\nremove = "go(left);"\n')
        command = [sys.executable, HERE / "apply.py", "--source", self.folder, "--out", self.folder / "out", "--mutations", listed, *words]
        return subprocess.run(command, capture_output=True, text=True)

    def test_copies(self):
        self.assertEqual(0, self.run_with("a.cc", "--", "a.cc", "b.cc").returncode)
        self.assertIn(SWITCH, (self.folder / "out/a.cc").read_text())
        self.assertEqual(PLAIN, (self.folder / "out/b.cc").read_text())

    def test_list(self):
        self.assertEqual(0, self.run_with("a.cc", "--list", "--", "a.cc").returncode)
        self.assertIn('{"M", "it \\"fails\\""},', (self.folder / "out/mutations.cc").read_text())

    def test_unchanged_files_are_not_rewritten(self):
        self.run_with("a.cc", "--", "b.cc")
        os.utime(self.folder / "out/b.cc", (1, 1))
        self.run_with("a.cc", "--", "b.cc")
        self.assertEqual(1, (self.folder / "out/b.cc").stat().st_mtime)

    def test_errors(self):
        done = self.run_with("c.cc", "--list", "--", "a.cc", "b.cc")
        self.assertEqual((1, "apply.py: mutation M of c.cc: it is not one of the sources that are mutated\n"), (done.returncode, done.stderr))
        (self.folder / "a.cc").write_text("")
        done = self.run_with("a.cc", "--", "a.cc")
        self.assertEqual((1, "apply.py: mutation M of a.cc: found 0 times, not once: go(left);\n"), (done.returncode, done.stderr))


if __name__ == "__main__":
    unittest.main()
