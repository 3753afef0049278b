"""Commands that the pages of docs/howto show run as they are written: all that need no daemon and train nothing."""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ["TITAN_SOURCE"])
BIN = Path(os.environ["TITAN_BIN"])
ASKS = re.compile(r"^titanctl (schedule|validate|config|version)\b|comm\.mode fake_backend")


def commands(page):
    """A line each, but for a shell loop, which is its whole block."""
    for block in re.findall(r"^```\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        yield from [block] if block.startswith("for ") else block.strip().split("\n")


class Docs(unittest.TestCase):
    def test_commands_run(self):
        ran = 0
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(SOURCE / "configs", Path(folder) / "configs")
            os.symlink(SOURCE / "configs/llama3_8b.toml", Path(folder) / "job.toml")
            environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
            for page in sorted((SOURCE / "docs/howto").glob("*.md")):
                for command in filter(ASKS.search, commands(page)):
                    with self.subTest(page=page.name, command=command):
                        done = subprocess.run(["bash", "-c", "set -o pipefail\n" + command], capture_output=True, text=True,
                                              cwd=folder, env=environment, timeout=120)
                        self.assertEqual(0, done.returncode, done.stderr[-1000:])
                        ran += 1
        self.assertGreater(ran, 8)

    # Pages name files that exist.
    def test_links_lead_somewhere(self):
        for page in [SOURCE / "README.md", *(SOURCE / "docs").rglob("*.md")]:
            for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
                self.assertTrue((page.parent / target).exists(), f"{page.relative_to(SOURCE)}: {target}")


if __name__ == "__main__":
    unittest.main()
