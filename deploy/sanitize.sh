#!/usr/bin/env bash
# Builds what does not link LibTorch under a sanitizer and runs its tests.
#
#   deploy/sanitize.sh asan|tsan [--quick] [CTEST ARGUMENTS...]      for example: deploy/sanitize.sh tsan -R reconcile
#
#   asan     AddressSanitizer and UBSan, in build/asan
#   tsan     ThreadSanitizer, in build/tsan
#   --quick  only what reads untrusted bytes and decides: configuration, storage, rank protocol, store, core, API, and the worker's core, daemon and shim
#
# What it costs is in docs/decisions/build.md.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  asan | tsan) preset=$1; shift ;;
  -h | --help) sed -n '2,10p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
  *) echo "sanitize: say asan or tsan (see --help)" >&2; exit 2 ;;
esac
targets=() chosen=()
if [ "${1:-}" = --quick ]; then
  shift
  tests=(titan_config_test storage_test test_rank_protocol test_store test_reconcile test_api test_node_core test_worker test_shim fuzz_replay)
  targets=("${tests[@]}")
  chosen=(-R "^($(IFS='|'; echo "${tests[*]}"))\$")
fi
# shellcheck source=deploy/build.sh
. deploy/build.sh
cmake --preset "$preset" >/dev/null
timed "build" ninja -C "build/$preset" -j "$(build_jobs)" "${targets[@]}"
timed "test" ctest --test-dir "build/$preset" --output-on-failure -j "$(nproc)" "${chosen[@]}" "$@"
