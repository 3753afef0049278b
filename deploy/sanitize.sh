#!/usr/bin/env bash
# Builds the parts without LibTorch under a sanitizer and runs their tests.
#
#   deploy/sanitize.sh asan|tsan [--quick | --readers] [CTEST ARGUMENTS...]      for example: deploy/sanitize.sh tsan -R reconcile
#
#   asan     AddressSanitizer and UBSan, in build/asan
#   tsan     ThreadSanitizer, in build/tsan
#   --quick  only readers of untrusted bytes and decisions: configuration, storage, rank protocol, store, core, API, and the worker's core, daemon and shim
#   --readers  only those that compile without Protobuf: readers of files and texts. Part of deploy/test.sh --all
#
# docs/decisions/build.md has its cost.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  asan | tsan) preset=$1; shift ;;
  -h | --help) sed -n '2,11p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
  *) echo "sanitize: the first argument must be asan or tsan (see --help)" >&2; exit 2 ;;
esac
tests=(plan_test io_test rank_protocol_test)
case "${1:-}" in
  --quick) tests+=(store_test reconcile_test api_test node_core_test worker_test shim_test fuzz_replay); shift ;;
  --readers) tests+=(pickle_test shim_logs_test); shift ;;
  *) tests=() ;;
esac
chosen=()
[ ${#tests[@]} = 0 ] || chosen=(-R "^($(IFS='|'; echo "${tests[*]}"))\$")
# shellcheck source=deploy/build.sh
. deploy/build.sh
# Simulations of minutes take an hour under a sanitizer, and what it detects does not need ten thousand of them.
export TITAN_SIMULATION_SEEDS=${TITAN_SIMULATION_SEEDS:-500} TITAN_SIMULATION_NODES=${TITAN_SIMULATION_NODES:-1000}
cmake --preset "$preset" >/dev/null
timed "build" ninja -C "build/$preset" -j "$(build_jobs)" "${tests[@]}"
timed "test" ctest --test-dir "build/$preset" --output-on-failure -j "$(nproc)" "${chosen[@]}" "$@"
