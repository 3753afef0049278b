# Sourced by other scripts: configures and builds with progress that is readable on a terminal and in a log.

# Prints the number of jobs: one per core, but with 1.5 GiB each, because a file with LibTorch's headers needs that much.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemAvailable/ { print int($2 / 1572864) }' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  echo $((cores < memory ? cores : memory))
}

# build_targets [TARGET...]: configures if needed and builds the targets, by default everything.
build_targets() {
  local log=build/release/build.log
  mkdir -p build/release
  if [ ! -f build/release/build.ninja ]; then
    cmake --preset release >"$log" 2>&1 || { tail -n 40 "$log" >&2; return 1; }
  fi
  # One moving line on a terminal, one line per twenty files elsewhere; everything is in the log.
  local every=20
  [ -t 1 ] && every=1
  # Plans with a copy: a dry run of build.ninja itself ends where it would regenerate it with CMake. Wrong targets are reported below.
  cp build/release/build.ninja build/release/plan.ninja
  ninja -C build/release -f plan.ninja -n "$@" >build/release/build.plan 2>&1 || true
  # Runs in a condition, so that `set -e` of the caller does not end the script before the errors are shown.
  if ! NINJA_STATUS='[%f/%t %e] ' ninja -C build/release -j "$(build_jobs)" "$@" 2>&1 | tee "$log" |
    awk -v every="$every" -v plan=build/release/build.plan -f deploy/build_progress.awk; then
    grep -E -A 20 'FAILED|error:' "$log" | head -n 80 >&2
    echo "the build failed; its whole log is $log" >&2
    return 1
  fi
}

# timed "What" COMMAND...: prints what begins and how long it took.
timed() {
  local what=$1 start=$SECONDS
  shift
  printf '==> %s\n' "$what"
  "$@"
  printf '    %s: %d s\n' "$what" $((SECONDS - start))
}
