"""Tests deploy/build_progress.awk: the remaining time follows the remaining work, not the number of files."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(os.environ["TITAN_SOURCE"]) / "deploy/build_progress.awk"
LIGHT = "Building CXX object common/plan/config/CMakeFiles/titan_config.dir/load.cc.o"
HEAVY = "Building CXX object worker/rank/nn/CMakeFiles/titan_nn.dir/linear.cc.o"


def progress(steps, every, plan=None):
    """Returns the output for ninja's `steps`, each (what, seconds since the start)."""
    with tempfile.NamedTemporaryFile("w") as planned:
        planned.writelines(f"[{i}/{len(steps)}] {what}\n" for i, what in enumerate(plan or [what for what, _ in steps], 1))
        planned.flush()
        lines = "".join(f"[{i}/{len(steps)} {seconds}] {what}\n" for i, (what, seconds) in enumerate(steps, 1))
        return subprocess.run(["awk", "-v", f"every={every}", "-v", f"plan={planned.name}", "-f", SCRIPT], input=("ninja: Entering directory\n[0/2 0.0] Re-checking globbed directories...\n" + lines).encode(),
                              capture_output=True, check=True).stdout.decode()


class BuildProgress(unittest.TestCase):
    def test_light_files_do_not_predict_heavy_ones(self):
        printed = progress([(LIGHT, 5.0), (LIGHT, 10.0), (HEAVY, 30.0), (HEAVY, 50.0)], every=2).splitlines()
        self.assertEqual(["  built 2 of 4, about 45 s left", "  built 4 of 4 in 50 s"], printed)

    def test_terminal_shows_one_updating_line(self):
        printed = progress([(LIGHT, 0.1), (HEAVY, 200.0), (HEAVY, 300.0)], every=1)
        self.assertEqual(1, printed.count("\n"))
        self.assertEqual(["built 1 of 3", "built 2 of 3, about 3 min left", "built 3 of 3 in 300 s"],
                         [part.strip() for part in printed.split("\r")[1:]])

    def test_nothing_to_do_prints_nothing(self):
        self.assertEqual("", progress([], every=1, plan=["ninja: no work to do."]))


if __name__ == "__main__":
    unittest.main()
