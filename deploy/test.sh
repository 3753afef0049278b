#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests: the check of every commit, or the longer one.
#
#   deploy/test.sh                        what every commit must pass
#   deploy/test.sh --all                  also what takes minutes and seldom breaks (label `long`), and readers of untrusted bytes under
#                                         AddressSanitizer
#   deploy/test.sh --room ROOM            the tests of one part of the tree, and only what they need is built: common, controller, node, rank
#   deploy/test.sh CTEST ARGUMENTS...     what ctest chooses, for example: deploy/test.sh -L fast     or: deploy/test.sh -R config
#
# Labels: fast, full (minutes), faults (kills real processes), gpu (skipped without one), long. `-L fast` builds only what it runs.
# How long each test took is in build/release/test-times.txt afterwards, the slowest first.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  -h | --help) sed -n '2,11p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
esac
if [ "${1:-}" = --room ] && { [ -z "${2:-}" ] || { [ ! -d "tests/$2" ] && [ ! -d "tests/worker/$2" ]; }; }; then
  echo "test: --room takes a folder of tests/ or tests/worker/: common, controller, node, rank, ..." >&2
  exit 2
fi
# shellcheck source=deploy/build.sh
. deploy/build.sh

targets=(all titan_long_tests) chosen=("$@")
case "$*" in
  "") targets=(all) chosen=(-LE '^long$') ;;
  --all) chosen=() ;;
  "--room "?*) targets=("titan_$2_tests") chosen=(-L "^$2\$" -LE '^long$') ;;
  "-L fast") targets=(titan_fast_tests) chosen=(-L fast -LE '^long$') ;;
esac
timed "install" deploy/bootstrap.sh --with-oracles
timed "build" build_targets "${targets[@]}"
[ "$*" != "--all" ] || deploy/sanitize.sh asan --readers

printf '==> test\n'
# The last lines are ctest's summary. One test more than there are cores runs at a time: those that start many processes of their own
# (CROWD, one a core) wait much more than they compute.
results=build/release/tests.xml code=0
rm -f $results
ctest --test-dir build/release --output-on-failure --output-junit "$PWD/$results" -j "$(($(nproc) + 1))" "${chosen[@]}" || code=$?
# An interrupted run leaves no results.
[ ! -e $results ] || python3 deploy/test_times.py $results >build/release/test-times.txt
exit $code
