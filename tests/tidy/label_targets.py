"""Checks that deploy/test.sh builds everything that its tests start: a fresh checkout has nothing else of the build.

    label_targets.py BUILD_FOLDER

Programs that a script names in a string, directly or in a module that it imports, must be inputs of the target that is built for
it: titan_fast_tests for `-L fast`, `all` for every commit, and also titan_long_tests for `--all`. The files that `cmake
--install` takes, which two of the fast tests run, must also be built.
"""

import ast
import json
import re
import subprocess
import sys
import unittest
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv[1])
FAST, COMMIT, LONG = "titan_fast_tests", "all", "titan_long_tests"
# An imported module names the first for commands that do not run; this test itself names the other two.
NOT_STARTED = {("bench_measures", "sized_models"), ("tidy_label_targets", "checkpoint_scale_test"), ("tidy_label_targets", "planted_bugs_test")}


def ninja(*words):
    done = subprocess.run(["ninja", "-C", BUILD, "-t", *words], check=True, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if not line.startswith("ninja: Entering")]


def entries(*chosen):
    """Returns (name, command) of each test that ctest selects."""
    done = subprocess.run(["ctest", "--test-dir", BUILD, *chosen, "--show-only=json-v1"], check=True, capture_output=True, text=True)
    # ctest leaves out the command if its program is not built; then the test has the program's name.
    return [(test["name"], test.get("command", [])) for test in json.loads(done.stdout)["tests"]]


def relative(path):
    try:
        return str(Path(path).relative_to(BUILD))
    except ValueError:
        return None


@cache
def strings(script):
    """Returns all string constants of a Python file and of the modules that it imports from its folder or tests/testing; for other
    files, their words."""
    text = script.read_text()
    if script.suffix != ".py":
        return frozenset(re.findall(r"[\w./-]+", text))
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        modules = [name.name for name in node.names] if isinstance(node, ast.Import) else [node.module] if isinstance(node, ast.ImportFrom) else []
        for module in filter(None, modules):
            for folder in (script.parent, SOURCE / "tests/testing"):
                if (folder / f"{module}.py").exists():
                    found |= strings(folder / f"{module}.py")
    return frozenset(found)


@cache
def built_for(target):
    """Returns the programs and libraries that a target links."""
    return {path for line in ninja("commands", target) for path in re.findall(r" -o ((?:bin|tests)/[\w.-]+) ", line)}


def programs():
    """Returns the path of each program or library in bin/ or tests/, by its name."""
    linked = [line.split(": ")[0] for line in ninja("targets", "all") if re.search(r": CXX_(EXECUTABLE|SHARED_LIBRARY|MODULE_LIBRARY)_LINKER", line)]
    return {Path(path).name: path for path in linked if re.fullmatch(r"(bin|tests)/[\w.-]+", path)}


class LabelTargets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.programs = programs()

    def started(self, name, command):
        """Returns the programs that a test starts: the one of its name, and those that its command and its scripts name."""
        words = [self.programs.get(name), *(relative(word) for word in command if Path(word).is_relative_to(BUILD))]
        wanted = {word for word in words if word in self.programs.values()}
        for script in (Path(word) for word in command if Path(word).is_relative_to(SOURCE / "tests") and Path(word).is_file()):
            wanted |= {self.programs[Path(text).name] for text in strings(script) if text and Path(text).name in self.programs}
        return {path for path in wanted if (name, Path(path).stem.removeprefix("lib")) not in NOT_STARTED}

    def check(self, chosen, *targets):
        built = set().union(*map(built_for, targets))
        for name, command in entries(*chosen):
            with self.subTest(name):
                self.assertEqual(set(), self.started(name, command) - built, "add them to NEEDS")

    def test_fast(self):
        self.assertIn("titanctl", self.programs)
        self.check(["-L", "^fast$", "-LE", "^long$"], FAST)

    def test_part_labels(self):
        for part in ("common", "controller", "node"):
            self.check(["-L", f"^{part}$", "-LE", "^long$"], f"titan_{part}_tests")

    # The tests of the control plane compile nothing that includes LibTorch.
    def test_the_controller_builds_without_libtorch(self):
        self.assertEqual([], [line for line in ninja("commands", "titan_controller_tests") if "torch_pch" in line])

    def test_every_commit(self):
        self.check(["-LE", "^long$"], COMMIT)

    def test_all(self):
        self.check([], COMMIT, LONG)

    # The build for every commit contains nothing that only longer checks and benchmarks start.
    def test_long_programs_are_built_later(self):
        self.assertIn("tests/checkpoint_scale_test" if "titan-rank" in self.programs else "tests/planted_bugs_test", built_for(LONG) - built_for(COMMIT))

    def test_installed_files_are_built(self):
        texts = [path.read_text() for path in BUILD.rglob("cmake_install.cmake")]
        installed = {relative(path) for text in texts for path in re.findall(rf'"({re.escape(str(BUILD))}/[^"]+)"', text)}
        files = {path for path in installed if path in self.programs.values() or (path or "").endswith(".so")}
        self.assertIn("bin/titan-rank" if "titan-rank" in self.programs else "bin/titanctl", files)
        self.assertEqual(set(), files - built_for(FAST))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
