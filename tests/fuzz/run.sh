#!/usr/bin/env bash
# Looks for inputs on which a reader fails: builds the preset `fuzz` and runs each target under libFuzzer.
#
#   tests/fuzz/run.sh [--seconds N] [--jobs N] [--minimize] [TARGET...]
#
#   --seconds N   of processor time for each target, 600 by default, so that a busy machine looks as far as an idle one
#   --jobs N      so many targets at once, 1 by default
#   --minimize    puts what is new of the corpora into tests/fuzz/corpus, as few and short as reach the same
#
# Prints a line for each target and fails when there is a finding; its input is then in build/fuzz/findings. docs/contributing/fuzzing.md says what to do.
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
  echo "run.sh: libFuzzer is clang's: apt-get install clang libclang-rt-14-dev" >&2
  exit 2
fi
cmake --preset fuzz >/dev/null
ninja -C build/fuzz fuzz | tail -n 1
found=$PWD/build/fuzz/findings
# The program that has the target.
program_of() {
  local program
  for program in "$PWD"/build/fuzz/bin/fuzz_{readers,peers}; do
    # Without a target it lists those that it has, and fails.
    if grep -qx "  $1" <<<"$("$program" 2>&1 || true)"; then
      echo "$program"
      return
    fi
  done
  echo "run.sh: no target '$1': its names are the folders of tests/fuzz/corpus" >&2
  exit 2
}
mkdir -p "$found" build/fuzz/corpus
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(ls tests/fuzz/corpus)

# A reader that goes into itself for each bracket needs little more than these brackets to show it.
ulimit -s 1024
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=0 UBSAN_OPTIONS=print_stacktrace=1
# Runs a command until it has used so many seconds of processor time; libFuzzer ends well at SIGUSR1.
spend() {
  local most=$1 process ticks
  shift
  "$@" &
  process=$!
  while sleep 2 && [ -r "/proc/$process/stat" ]; do
    ticks=$(awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$process/stat" 2>/dev/null || echo 0)
    [ "${ticks:-0}" -lt $((most * $(getconf CLK_TCK))) ] || { kill -USR1 "$process" 2>/dev/null || true; break; }
  done
  wait "$process"
}
# In MiB: what one allocation of a target may take. A frame of zstd may ask for a window of 2 GiB, of which nothing is touched.
allocation_of() {
  case "$1" in
    compressed_text | counted_* | data_cursor | documents) echo 2304 ;;
    *) echo 512 ;;
  esac
}
# Whether what is not freed is a finding. gRPC's threads begin and end beside the target `services`, whenever it is looked at.
counts_leaks() { [ "$1" = services ] && echo 0 || echo 1; }
# Prints a target's line. Of findings, as of all that goes wrong, the first is enough: the next comes when it is mended.
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
  # What is named stays; of the others, those that reach more than the named ones do.
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
