#!/usr/bin/env bash
# Measures rows of the fault matrix: tests/faults/measure.sh [ROWS...] (measure.py has the words). Programs are those of build/release, or of
# TITAN_BIN and TITAN_TESTS; Python is .deps/venv's, or of TITAN_DEPS.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export TITAN_SOURCE="${TITAN_SOURCE:-$(cd "$here/../.." && pwd)}"
export TITAN_DEPS="${TITAN_DEPS:-$TITAN_SOURCE/.deps}"
export TITAN_BIN="${TITAN_BIN:-$TITAN_SOURCE/build/release/bin}"
export TITAN_TESTS="${TITAN_TESTS:-$(dirname "$TITAN_BIN")/tests}"
export PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=passive
exec "$TITAN_DEPS/venv/bin/python" "$here/measure.py" "$@"
