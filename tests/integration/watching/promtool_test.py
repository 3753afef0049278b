"""Runs promtool's checks of the rules, their tests, the example configuration, and both daemons' pages."""

import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from live import SOURCE, WatchedCluster, need  # noqa: E402

RULES = SOURCE / "deploy/prometheus"


class PromtoolTest(unittest.TestCase):
    def setUp(self):
        need("promtool")

    def passes(self, *words, text=None):
        done = subprocess.run(["promtool", *map(str, words)], input=text, capture_output=True, text=True, check=False, cwd=RULES)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_the_rules_are_well_formed(self):
        self.passes("check", "rules", "alerts.yml")

    def test_each_alert_fires_and_is_quiet_when_it_should(self):
        self.passes("test", "rules", "alerts_test.yml")

    def test_the_example_configuration(self):
        self.passes("check", "config", "prometheus.yml")

    def test_pages_follow_naming_rules(self):
        with WatchedCluster(fake={}, watch=False) as cluster:
            for address in sum(cluster.pages().values(), []):
                printed = self.passes("check", "metrics", text=cluster.page(address))
                self.assertEqual("", printed, address)  # promtool's advice fails the test like its errors.


if __name__ == "__main__":
    unittest.main(verbosity=2)
