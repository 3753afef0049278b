"""Checks that the metrics pages, their description, the alerts and the dashboard agree.

    agreement_test.py [--write]     --write puts into docs/metrics.md who uses each series

It runs no daemon; live_test.py queries a Prometheus.
"""

import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from metrics_page import ALERTS, DOCS, NAME, ROW, SOURCE, alerts, documented, in_sources, names_in, users  # noqa: E402

import panels  # noqa: E402

LABELS = {"titan_job"}  # Names with the form of a series that are labels.
RUNBOOK = SOURCE / "docs/operate/alerts.md"
GRAFANA = SOURCE / "deploy/grafana"
UNITS = {"s", "bytes", "Bps", "percentunit", "short", "ops", "none", "celsius", "watt"}
NO_UNIT = {"Loss", "Balance of experts"}  # Numbers without a unit.


def with_users():
    known = documented()
    used = users(known)
    lines = []
    for line in DOCS.read_text().splitlines():
        row = ROW.match(line)
        lines.append(f"{row['start']} {used[row['name']]} |".replace("|  |", "| |") if row else line)
    return "\n".join(lines) + "\n"


class AgreementTest(unittest.TestCase):
    def test_every_series_is_documented_and_every_documented_one_exists(self):
        known, named = set(documented()), in_sources() - LABELS
        self.assertEqual(set(), named - known, "not in docs/metrics.md")
        self.assertEqual(set(), known - named, "in docs/metrics.md, and no program has it")

    def test_page_lists_users_of_each_series(self):
        self.assertEqual(with_users(), DOCS.read_text(), "run tests/integration/watching/agreement_test.py --write")

    def test_alerts_and_panels_use_existing_series(self):
        known = documented()
        expressions = {**alerts(), **{panel.title: expression for panel in panels.panels() for _, expression in panel.queries}}
        for title, expression in expressions.items():
            unknown = {name for name in NAME.findall(expression) if name not in LABELS} - set(known)
            self.assertEqual(set(), {name for name in unknown if not names_in(name, known) & set(known)}, title)

    def test_every_alert_has_a_section_of_the_runbook(self):
        sections = set(re.findall(r"^### (\w+)$", RUNBOOK.read_text(), re.MULTILINE))
        links = re.findall(r"- alert: (\w+)\n(?:.*\n)*?\s+runbook: (\S+)", ALERTS.read_text())
        self.assertEqual(list(alerts()), [name for name, _ in links])
        for name, link in links:
            self.assertIn(name, sections)
            self.assertEqual(f"docs/operate/alerts.md#{name.lower()}", link)
        self.assertEqual(set(), {name for name in sections if name not in alerts()}, "sections of alerts that no longer exist")

    def test_every_alert_has_a_severity(self):
        for block in ALERTS.read_text().split("- alert: ")[1:]:
            self.assertRegex(block, r"labels: \{severity: (critical|warning|info)\}\n\s+annotations:\n\s+summary: .+\n\s+description: .+\n")

    def test_every_alert_is_tested_both_ways(self):
        text = (SOURCE / "deploy/prometheus/alerts_test.yml").read_text()
        self.assertEqual([way for name in alerts() for way in (f"{name} fires", f"{name} is quiet")], re.findall(r"- name: (.+)", text))
        for block in text.split("  - name: ")[1:]:
            name = block.split()[0]
            self.assertIn(f"alertname: {name}\n", block)
            self.assertEqual(" is quiet" in block.splitlines()[0], "exp_alerts: []" in block, name)

    def test_dashboard_matches_its_generator(self):
        done = subprocess.run([sys.executable, GRAFANA / "make_dashboard.py", "--check"], capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stderr)

    def test_every_panel_has_a_unit(self):
        for panel in panels.panels():
            self.assertIn(panel.unit, UNITS, panel.title)
            self.assertEqual(panel.title in NO_UNIT, panel.unit == "none", panel.title)
        shown = json.loads((GRAFANA / "dashboards/titan.json").read_text())["panels"]
        self.assertTrue(all(one["fieldConfig"]["defaults"]["unit"] for one in shown if one["type"] != "row"))

    def test_titles_and_identities_are_unique(self):
        titles = [panel.title for panel in panels.panels()]
        self.assertEqual(len(titles), len(set(titles)))
        shown = json.loads((GRAFANA / "dashboards/titan.json").read_text())["panels"]
        self.assertEqual(len(shown), len({one["id"] for one in shown}))


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        DOCS.write_text(with_users())
        sys.exit()
    unittest.main(verbosity=2)
