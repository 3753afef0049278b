"""Imports every row of the fault matrix. A module of rows registers them when it is imported."""

import importlib
from pathlib import Path

from matrix.row import ROWS

for module in sorted(Path(__file__).parent.glob("rows_*.py")):
    importlib.import_module(f"matrix.{module.stem}")

ALL = dict(sorted(ROWS.items()))
