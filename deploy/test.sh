#!/usr/bin/env bash
# Installs what is missing, builds everything and runs all tests. The whole check of a fresh clone.
#
#   deploy/test.sh [CTEST ARGUMENTS...]      for example: deploy/test.sh -L fast     or: deploy/test.sh -R config
#
# Labels: fast, full (minutes), faults (kills real processes), gpu (skipped without one). `-L fast` builds only what it runs.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  -h | --help) sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
esac
# shellcheck source=deploy/build.sh
. deploy/build.sh

timed "install" deploy/bootstrap.sh --with-oracles
targets=()
[ "$*" != "-L fast" ] || targets=(titan_fast_tests)
timed "build" build_targets "${targets[@]}"
# Minutes for what seldom breaks: CI alone waits for it, and only where compiling is quick.
if [ -n "${CI:-}" ] && [ $# = 0 ]; then
  if [ $SECONDS -lt 900 ]; then
    deploy/sanitize.sh asan --readers
  else
    echo "==> left out: readers under AddressSanitizer (deploy/sanitize.sh asan --readers), since the build alone took long here"
  fi
fi
printf '==> test\n'
# The last lines are ctest's summary. Of the tests that start many processes of their own one runs at a time (CROWD).
exec ctest --test-dir build/release --output-on-failure -j "$(nproc)" "$@"
