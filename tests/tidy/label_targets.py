"""What `deploy/test.sh -L fast` builds is what the entries with that label start: a fresh checkout has nothing else of the build.

    label_targets.py BUILD_FOLDER

Programs that a script names in a string, itself or in a module that it imports, must be among the inputs of the label's target, and so
must everything that `cmake --install` takes, which two of the entries run.
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
TARGET = "titan_fast_tests"
NOT_STARTED = {("bench_measures", "sized_models")}  # A module that is imported names it for commands that are not run.


def ninja(*words):
    done = subprocess.run(["ninja", "-C", BUILD, "-t", *words], check=True, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if not line.startswith("ninja: Entering")]


def entries():
    """(name, command) of each entry with the label."""
    done = subprocess.run(["ctest", "--test-dir", BUILD, "-L", "^fast$", "--show-only=json-v1"], check=True, capture_output=True, text=True)
    # ctest leaves the command out where its program is not built.
    return [(test["name"], test.get("command", [])) for test in json.loads(done.stdout)["tests"]]


def relative(path):
    try:
        return str(Path(path).relative_to(BUILD))
    except ValueError:
        return None


@cache
def strings(script):
    """All string constants of a Python file and of the modules beside it or in tests/testing that it imports; the words of any other file."""
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


class LabelTargets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.built = {line.strip() for line in ninja("query", TARGET) + ninja("inputs", TARGET)}
        linked = [line.split(": ")[0] for line in ninja("targets", "all") if re.search(r": CXX_(EXECUTABLE|SHARED_LIBRARY|MODULE_LIBRARY)_LINKER", line)]
        cls.programs = {Path(path).name: path for path in linked if re.fullmatch(r"(bin|tests)/[\w.-]+", path)}

    def test_entries_find_their_programs(self):
        self.assertIn("titanctl", self.programs)
        for name, command in entries():
            with self.subTest(name):
                self.assertTrue(command, "its program is not built")
                words = [relative(word) for word in command if Path(word).is_relative_to(BUILD)]
                wanted = {word for word in words if word in self.programs.values()}
                for script in (Path(word) for word in command if Path(word).is_relative_to(SOURCE / "tests") and Path(word).is_file()):
                    wanted |= {self.programs[Path(text).name] for text in strings(script) if text and Path(text).name in self.programs}
                wanted = {path for path in wanted if (name, Path(path).stem.removeprefix("lib")) not in NOT_STARTED}
                self.assertEqual(set(), wanted - self.built, "add them to NEEDS")

    def test_all_that_is_installed(self):
        texts = [path.read_text() for path in BUILD.rglob("cmake_install.cmake")]
        installed = {relative(path) for text in texts for path in re.findall(rf'"({re.escape(str(BUILD))}/[^"]+)"', text)}
        files = {path for path in installed if path in self.programs.values() or (path or "").endswith(".so")}
        self.assertIn("bin/titan-rank" if "titan-rank" in self.programs else "bin/titanctl", files)
        self.assertEqual(set(), files - self.built)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
