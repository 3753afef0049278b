#!/usr/bin/env bash
# Searches for inputs on which a reader fails: builds the preset `fuzz` and runs each target under libFuzzer.
#
#   tests/fuzz/run.sh [--seconds N] [--jobs N] [--minimize] [TARGET...]
#
#   --seconds N   CPU seconds for each target, 600 by default, so that a busy machine searches as far as an idle one
#   --jobs N      targets at once, 1 by default
#   --minimize    adds the inputs that reach new code to tests/fuzz/corpus, as few and as short as possible
#
# Prints a line for each target and fails if there is a finding; its input is then in build/fuzz/findings.
# docs/contributing/fuzzing.md describes the next steps.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=600 jobs=1 minimize=0 targets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds) seconds=$2; shift ;;
    --jobs) jobs=$2; shift ;;
    --minimize) minimize=1 ;;
    -h | --help) sed -n '2,11p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    -*) echo "run.sh: unknown option '$1' (see --help)" >&2; exit 2 ;;
    *) targets+=("$1") ;;
  esac
  shift
done
if ! command -v clang++ >/dev/null; then
  echo "run.sh: libFuzzer needs clang: apt-get install clang libclang-rt-14-dev" >&2
  exit 2
fi
cmake --preset fuzz >/dev/null
ninja -C build/fuzz fuzz | tail -n 1
found=$PWD/build/fuzz/findings
# Prints the path of the program that has the target.
program_of() {
  local program
  for program in "$PWD"/build/fuzz/bin/fuzz_{readers,peers}; do
    # Without a target it lists its targets and fails.
    if grep -qx "  $1" <<<"$("$program" 2>&1 || true)"; then
      echo "$program"
      return
    fi
  done
  echo "run.sh: unknown target '$1': the targets are the folders of tests/fuzz/corpus" >&2
  exit 2
}
mkdir -p "$found" build/fuzz/corpus
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(ls tests/fuzz/corpus)

# With this small stack a reader that recurses for each bracket fails on few brackets.
ulimit -s 1024
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=0 UBSAN_OPTIONS=print_stacktrace=1
# Runs a command until it has used the given CPU seconds; libFuzzer exits with success on SIGUSR1.
spend() {
  local max_seconds=$1 process ticks
  shift
  "$@" &
  process=$!
  while sleep 2 && [ -r "/proc/$process/stat" ]; do
    ticks=$(awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$process/stat" 2>/dev/null || echo 0)
    [ "${ticks:-0}" -lt $((max_seconds * $(getconf CLK_TCK))) ] || { kill -USR1 "$process" 2>/dev/null || true; break; }
  done
  wait "$process"
}
# Prints the largest allocation that a target may make, in MiB. A zstd frame may request a window of 2 GiB, which is
# never touched.
allocation_of() {
  case "$1" in
    compressed_text | counted_* | data_cursor | documents) echo 2304 ;;
    *) echo 512 ;;
  esac
}
# Prints whether leaks are findings. gRPC's threads start and end independently of the target `services`, so its leaks
# do not count.
counts_leaks() { [ "$1" = services ] && echo 0 || echo 1; }
# Runs a target and prints its line. It stops at the first finding; the next one shows once that is fixed.
fuzz() {
  local target=$1 work=build/fuzz/corpus/$1 log=build/fuzz/$1.log finding=none program executions edges
  program=$(program_of "$target")
  mkdir -p "$work"
  spend "$seconds" "$program" --target="$target" -timeout=60 -rss_limit_mb=2048 -malloc_limit_mb="$(allocation_of "$target")" -detect_leaks="$(counts_leaks "$target")" -max_len=65536 \
    -print_final_stats=1 -verbosity=1 -artifact_prefix="$found/$target-" "$work" "tests/fuzz/corpus/$target" >"$log" 2>&1 ||
    { finding=$(grep -aoE "Test unit written to .*" "$log" | tail -n 1 | sed 's/.* //' || true); finding=${finding:-see $log}; }
  executions=$(grep -a "stat::number_of_executed_units" "$log" | grep -oE "[0-9]+$" || echo 0)
  edges=$(grep -aoE "cov: [0-9]+" "$log" | tail -n 1 | grep -oE "[0-9]+" || echo 0)
  printf '%-16s %10s %8s %8s %8s  %s\n' "$target" "$executions" "$edges" "$(ls "$work" | wc -l)" "$seconds" "${finding#"$PWD"/}"
  [ "$finding" = none ] || return 1
  [ $minimize = 1 ] || return 0
  # Named files stay; of the others, only those that reach more code than the named ones.
  "$program" --target="$target" -merge=1 -max_len=2048 "tests/fuzz/corpus/$target" "$work" >>"$log" 2>&1 || true
  ls -Sr "tests/fuzz/corpus/$target" | grep -E '^[0-9a-f]{40}$' | tail -n +25 | sed "s|^|tests/fuzz/corpus/$target/|" | xargs -r rm -f || true
}

failed=0
printf '%-16s %10s %8s %8s %8s  %s\n' target executions edges files seconds finding
for target in "${targets[@]}"; do
  program_of "$target" >/dev/null
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || failed=1; done
  fuzz "$target" &
done
while [ "$(jobs -p | wc -l)" -gt 0 ]; do wait -n || failed=1; done
exit $failed
