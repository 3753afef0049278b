"""Paths of the checkout and of the built programs: from ctest's environment, or the checkout's own build by default."""

import os
from pathlib import Path

SOURCE = Path(os.environ.get("TITAN_SOURCE", Path(__file__).resolve().parents[2]))
BIN = Path(os.environ.get("TITAN_BIN", SOURCE / "build/release/bin"))
BUILD = BIN.parent
