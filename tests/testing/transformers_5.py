"""Runs a test again with transformers 5, which deploy/bootstrap.sh --with-oracles installs next to the environment, in
.deps/transformers5."""

import os
import pathlib
import subprocess
import sys

MARK = "TITAN_TEST_TRANSFORMERS_5"


def is_second_run():
    """Returns whether this process is the run with transformers 5."""
    return MARK in os.environ


def run_again_with_5():
    """Runs the program again with the same arguments and transformers 5, and exits with its exit code. Does nothing in
    that second process."""
    if is_second_run():
        return
    overlay = pathlib.Path(os.environ["TITAN_DEPS"]) / "transformers5"
    if not (overlay / "transformers").is_dir():
        sys.exit(f"{overlay} is missing: deploy/bootstrap.sh --with-oracles installs it")
    path = os.pathsep.join(part for part in (str(overlay), os.environ.get("PYTHONPATH")) if part)
    done = subprocess.run([sys.executable, *sys.argv], env={**os.environ, "PYTHONPATH": path, MARK: "1"})
    if done.returncode != 0:
        sys.exit(done.returncode)
