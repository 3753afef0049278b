"""Writes the dashboard of panels.py in Grafana's format.

    make_dashboard.py [--check]      writes dashboards/titan.json; --check only compares it with the output
"""

import json
import sys
from pathlib import Path

import panels

OUT = Path(__file__).resolve().parent / "dashboards" / "titan.json"
SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT, ACROSS = 8, 7, 3


def target(number, query):
    legend, expression = query
    return {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": expression, "legendFormat": legend, "range": True}


def of_kind(panel):
    if panel.kind == "stat":
        return {"type": "stat", "options": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "area"}}
    return {"type": "timeseries", "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}}


def of_panel(panel, number, place):
    x, y = place
    defaults = {"unit": panel.unit, "min": 0} if panel.unit != "none" else {"unit": panel.unit}
    return {"id": number, "title": panel.title, "description": panel.about, "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT}, "fieldConfig": {"defaults": defaults, "overrides": []},
            "targets": [target(i, query) for i, query in enumerate(panel.queries)], **of_kind(panel)}


def all_panels():
    made, y = [], 0
    for row in panels.ROWS:
        made.append({"id": len(made) + 1, "type": "row", "title": row.title, "collapsed": False, "panels": [],
                     "gridPos": {"x": 0, "y": y, "w": WIDTH * ACROSS, "h": 1}})
        for i, panel in enumerate(row.panels):
            made.append(of_panel(panel, len(made) + 1, (i % ACROSS * WIDTH, y + 1 + i // ACROSS * HEIGHT)))
        y += 1 + -(-len(row.panels) // ACROSS) * HEIGHT
    return made


def variables():
    return [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
            {"name": "job", "label": "Job", "type": "query", "datasource": SOURCE, "multi": True, "includeAll": True, "allValue": panels.ALL_JOBS,
             "query": {"query": "label_values(titan_job_ranks, titan_job)", "refId": "jobs"}, "refresh": 2, "sort": 1,
             "current": {"text": "All", "value": "$__all"}}]


def dashboard():
    return {"uid": "titan", "title": "Titan", "tags": ["titan"], "schemaVersion": 38, "version": 1, "editable": True, "refresh": "15s",
            "time": {"from": "now-1h", "to": "now"}, "timezone": "browser", "templating": {"list": variables()}, "panels": all_panels()}


def text():
    return json.dumps(dashboard(), indent=1) + "\n"


def main():
    if "--check" in sys.argv[1:]:
        return 0 if OUT.exists() and OUT.read_text() == text() else f"{OUT} is old: run {Path(__file__).name}"
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
