#!/usr/bin/env bash
# Measures rows of the fault matrix: tests/faults/measure.sh [ROWS...] (see measure.py for the arguments). Programs come
# from build/release, or from TITAN_BIN and TITAN_TESTS; Python from .deps/venv, or from TITAN_DEPS.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export TITAN_SOURCE="${TITAN_SOURCE:-$(cd "$here/../.." && pwd)}"
export TITAN_DEPS="${TITAN_DEPS:-$TITAN_SOURCE/.deps}"
export TITAN_BIN="${TITAN_BIN:-$TITAN_SOURCE/build/release/bin}"
export TITAN_TESTS="${TITAN_TESTS:-$(dirname "$TITAN_BIN")/tests}"
export PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=passive
exec "$TITAN_DEPS/venv/bin/python" "$here/measure.py" "$@"
