#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy) over the tree; see deploy/tidy.py or --help.
set -euo pipefail
exec python3 "$(dirname "$0")/tidy.py" "$@"
