#!/usr/bin/env bash
# Builds what does not link LibTorch under a sanitizer and runs its tests.
#
#   deploy/sanitize.sh asan|tsan [--quick | --readers] [CTEST ARGUMENTS...]      for example: deploy/sanitize.sh tsan -R reconcile
#
#   asan     AddressSanitizer and UBSan, in build/asan
#   tsan     ThreadSanitizer, in build/tsan
#   --quick  only what reads untrusted bytes and decides: configuration, storage, rank protocol, store, core, API, and the worker's core, daemon and shim
#   --readers  of it what compiles without Protobuf: files and texts that others write. Part of deploy/test.sh --all
#
# What it costs is in docs/decisions/build.md.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  asan | tsan) preset=$1; shift ;;
  -h | --help) sed -n '2,11p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
  *) echo "sanitize: say asan or tsan (see --help)" >&2; exit 2 ;;
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
# Histories that take a machine minutes take it an hour here, and what these look for does not want ten thousand of them.
export TITAN_SIMULATION_SEEDS=${TITAN_SIMULATION_SEEDS:-500} TITAN_SIMULATION_NODES=${TITAN_SIMULATION_NODES:-1000}
cmake --preset "$preset" >/dev/null
timed "build" ninja -C "build/$preset" -j "$(build_jobs)" "${tests[@]}"
timed "test" ctest --test-dir "build/$preset" --output-on-failure -j "$(nproc)" "${chosen[@]}" "$@"
