"""Where a test finds the checkout and the built programs; ctest says so in the environment, and a checkout's own build is the default."""

import os
from pathlib import Path

SOURCE = Path(os.environ.get("TITAN_SOURCE", Path(__file__).resolve().parents[2]))
BIN = Path(os.environ.get("TITAN_BIN", SOURCE / "build/release/bin"))
BUILD = BIN.parent
