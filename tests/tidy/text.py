"""Checks for what does not belong in a source tree: unfinished work, machine paths, and unformatted files."""

import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import SOURCE

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")
MACHINE_PATH = re.compile(r"(?<![\w$}])/(work|root|home/\w+)/")
LARGEST = 512 << 10
CODE = (".h", ".cc", ".cu", ".cuh")


def tracked():
    """Returns files that git tracks, or, in a copy without git, everything outside of build folders."""
    listed = subprocess.run(["git", "-C", SOURCE, "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        return [SOURCE / name for name in listed.stdout.split("\0") if name and (SOURCE / name).is_file()]
    skipped = {"build", ".deps", ".git", "outputs"}
    return [p for p in SOURCE.rglob("*") if p.is_file() and not skipped & set(p.relative_to(SOURCE).parts)]


class Text(unittest.TestCase):
    def lines(self, pattern, skip=()):
        found = []
        for path in tracked():
            name = path.relative_to(SOURCE).as_posix()
            if name.startswith("tests/tidy/") or name in skip:
                continue
            try:
                text = path.read_text()
            except UnicodeDecodeError:
                continue
            found += [f"{name}:{i}: {line.strip()[:100]}" for i, line in enumerate(text.splitlines(), 1) if pattern.search(line)]
        return found

    def test_no_unfinished_work(self):
        self.assertEqual([], self.lines(UNFINISHED))

    def test_no_machine_paths(self):
        self.assertEqual([], self.lines(MACHINE_PATH))

    # A committed core dump, checkpoint or trace would stay in the history forever.
    def test_no_large_files(self):
        sizes = {path.relative_to(SOURCE).as_posix(): path.stat().st_size for path in tracked()}
        self.assertEqual({}, {name: size for name, size in sizes.items() if size > LARGEST})

    @unittest.skipUnless(shutil.which("clang-format"), "clang-format is not installed")
    def test_formatted(self):
        files = [str(p) for p in tracked() if p.suffix in CODE and p.relative_to(SOURCE).parts[0] != "proto"]
        done = subprocess.run(["clang-format", "--dry-run", "-Werror", *files], capture_output=True, text=True)
        bad = sorted({line.split(":")[0] for line in done.stderr.splitlines() if "code should be clang-formatted" in line})
        self.assertEqual([], bad, "run: clang-format -i " + " ".join(bad))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
