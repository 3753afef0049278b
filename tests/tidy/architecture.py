"""Checks docs/ARCHITECTURE.md: every path on the page exists, and every folder with sources is on the page."""

import itertools
import re
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import SOURCE

PAGE = SOURCE / "docs/ARCHITECTURE.md"
PATH = re.compile(r"(?<![\w./-])((?:cmake|common|configs|controller|deploy|docs|proto|tests|worker)(?:/[\w.{},-]+)*)")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
ENDINGS = ("", ".h", ".cc", ".py")


def expanded(text):
    """Expands "a/{b,c}" to "a/b", "a/c"."""
    parts = re.split(r"\{([^}]*)\}", text)
    choices = [[part] if i % 2 == 0 else part.split(",") for i, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def named(text):
    return {one for found in PATH.findall(text) for one in expanded(found.rstrip(".,"))}


def source_folders():
    return {path.parent.relative_to(SOURCE).as_posix() for top in ("common", "controller", "worker")
            for path in (SOURCE / top).rglob("*") if path.suffix in (".h", ".cc", ".cu")}


class Architecture(unittest.TestCase):
    def test_every_path_exists(self):
        self.assertEqual([], sorted(one for one in named(PAGE.read_text()) if "/" in one and not any((SOURCE / (one + end)).exists() for end in ENDINGS)))

    def test_every_link_leads_somewhere(self):
        self.assertEqual([], sorted(link for link in LINK.findall(PAGE.read_text()) if not (PAGE.parent / link).exists()))

    def test_every_folder_is_named(self):
        self.assertEqual(set(), source_folders() - named(PAGE.read_text()))

    def test_braces_are_expanded(self):
        self.assertEqual({"common/a", "common/b/c"}, named("`common/{a,b/c}`."))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
