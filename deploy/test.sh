#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests: the check of every commit, or a longer one.
#
#   deploy/test.sh                        the tests that every commit must pass
#   deploy/test.sh --all                  also tests that take minutes and seldom fail (label `long`), and readers of untrusted bytes under
#                                         AddressSanitizer
#   deploy/test.sh --part FOLDER          builds and runs only the tests of one part of the tree: common, controller, node, rank
#   deploy/test.sh CTEST ARGUMENTS...     the tests that ctest selects, for example: deploy/test.sh -L fast     or: deploy/test.sh -R config
#
# Labels: fast, full (minutes), faults (kills real processes), gpu (skipped without one), long. `-L fast` builds only what it runs.
# Afterwards build/release/test-times.txt has the duration of each test, the slowest first.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  -h | --help) sed -n '2,11p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
esac
if [ "${1:-}" = --part ] && { [ -z "${2:-}" ] || { [ ! -d "tests/$2" ] && [ ! -d "tests/worker/$2" ]; }; }; then
  echo "test: --part takes a folder of tests/ or tests/worker/: common, controller, node, rank, ..." >&2
  exit 2
fi
# shellcheck source=deploy/build.sh
. deploy/build.sh

targets=(all titan_long_tests) chosen=("$@")
case "$*" in
  "") targets=(all) chosen=(-LE '^long$') ;;
  --all) chosen=() ;;
  "--part "?*) targets=("titan_$2_tests") chosen=(-L "^$2\$" -LE '^long$') ;;
  "-L fast") targets=(titan_fast_tests) chosen=(-L fast -LE '^long$') ;;
esac
timed "install" deploy/bootstrap.sh --with-oracles
timed "build" build_targets "${targets[@]}"
[ "$*" != "--all" ] || deploy/sanitize.sh asan --readers

printf '==> test\n'
# The last lines are ctest's summary. One test more than the number of cores runs at a time, because tests that start many processes
# (CROWD, one per core) wait much more than they compute.
results=build/release/tests.xml code=0
rm -f $results
ctest --test-dir build/release --output-on-failure --output-junit "$PWD/$results" -j "$(($(nproc) + 1))" "${chosen[@]}" || code=$?
# An interrupted run leaves no results.
[ ! -e $results ] || python3 deploy/test_times.py $results >build/release/test-times.txt
exit $code
