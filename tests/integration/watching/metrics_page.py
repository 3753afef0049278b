"""Series as a page shows them, as docs/metrics.md describes them, and as the sources name them."""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "testing"))
from paths import SOURCE

sys.path.insert(0, str(SOURCE / "deploy/grafana"))
import panels  # noqa: E402

DOCS = SOURCE / "docs/metrics.md"
ALERTS = SOURCE / "deploy/prometheus/alerts.yml"

NAME = re.compile(r"\b(?:titan|process)_[a-z0-9_]+\b")
PARTS = re.compile(r"_(bucket|sum|count)$")
ROW = re.compile(r"^(?P<start>\| `(?P<name>[a-z0-9_]+)` \| (?P<type>\w+) \|(?P<labels>[^|]*)\|(?P<meaning>[^|]*)\|)(?P<used>[^|]*)\|$")


@dataclass
class Family:
    type: str
    labels: set = field(default_factory=set)
    meaning: str = ""
    used: str = ""


def families(page):
    """Returns the families of a page by name; a histogram's parts belong to its family."""
    found = {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            found[name] = Family(kind)
        elif line and not line.startswith("#"):
            name = re.match(r"[a-z0-9_]+", line).group()
            family = found.get(name) or found[PARTS.sub("", name)]
            family.labels |= set(re.findall(r'[{,]([a-z_]+)="', line)) - {"le"}
    return found


def documented():
    found = {}
    for row in filter(None, map(ROW.match, DOCS.read_text().splitlines())):
        if row["name"] in found:
            raise AssertionError(f"docs/metrics.md has {row['name']} twice")
        found[row["name"]] = Family(row["type"], set(re.findall(r"`(\w+)`", row["labels"])), row["meaning"].strip(), row["used"].strip())
    return found


def in_sources():
    """Returns the names that the programs give to series."""
    files = [path for folder in ("common/service/metrics", "common/service/rpc", "controller/api", "controller/reconcile", "worker/node/daemon")
             for path in (SOURCE / folder).rglob("*.*") if path.suffix in (".cc", ".h")]
    literals = (re.findall(r'"((?:titan|process)_[a-z0-9_]+)"', path.read_text()) for path in files)
    return {name for names in literals for name in names}


def alerts():
    """Returns {alert: its expression}."""
    return dict(re.findall(r"- alert: (\w+)\n\s+expr: '?(.*?)'?\n", ALERTS.read_text()))


def names_in(expression, known):
    """Returns the series in the expression."""
    return {name if name in known else PARTS.sub("", name) for name in NAME.findall(expression)}


def users(known):
    """Returns for each name, in words, which alerts and rows of the dashboard use it."""
    used = {name: ([], []) for name in known}
    for alert, expression in alerts().items():
        for name in names_in(expression, known) & set(known):
            used[name][0].append(alert)
    for row in panels.ROWS:
        for name in {name for panel in row.panels for _, expression in panel.queries for name in names_in(expression, known)} & set(known):
            used[name][1].append(row.title)
    return {name: ", ".join([*alerts_of, *(f"*{row}*" for row in rows)]) for name, (alerts_of, rows) in used.items()}
