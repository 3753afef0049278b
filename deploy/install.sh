#!/usr/bin/env bash
# Installs Titan for every user of this machine: programs, LibTorch, headers for model libraries, recipes, their
# text, pages, completions and systemd units (590 MB).
# First installs the build requirements and builds what is missing, like deploy/quickstart.sh.
#
#   deploy/install.sh [--prefix FOLDER] [--with-cuda]
#
#   --prefix FOLDER   default /usr/local; it may be moved or copied afterwards
#   --with-cuda       also the parts for GPUs (5 GB); run deploy/bootstrap.sh --with-cuda first
#
# deploy/package.sh makes Debian packages instead.
# To remove Titan, delete the files that are listed in build/release/install_manifest_*.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=deploy/build.sh
. deploy/build.sh

prefix=/usr/local
components=(titanctl titan-controller titan-worker titan-rank titan-common titan-doc titan-libtorch titan-parquet titan-sdk)
targets=(titanctl titan-controller titan-worker titan-shim titan-stacks titan-rank titan-checkpoint titan-data titan-generate titan_parquet)
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,12p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    --prefix) [ $# -ge 2 ] || { echo "install: --prefix needs a folder" >&2; exit 2; }; prefix=$2; shift 2 ;;
    --prefix=*) prefix=${1#*=}; shift ;;
    --with-cuda) components+=(titan-cuda) targets+=(titan_cuda); shift ;;
    *) echo "install: unknown option '$1' (see --help)" >&2; exit 2 ;;
  esac
done

copy() {
  local component
  umask 022  # Everybody may read the files, whatever the default umask is.
  for component in "${components[@]}"; do
    cmake --install build/release --prefix "$prefix" --component "$component" --strip >build/release/install.log 2>&1 ||
      { tail -n 20 build/release/install.log >&2; return 1; }
  done
}

timed "install what is missing" deploy/bootstrap.sh --quiet
timed "build" build_targets "${targets[@]}"
timed "copy to $prefix" copy
echo
echo "try it      $prefix/bin/titanctl run $prefix/share/titan/configs/llama3_tiny.toml --nproc 2"
echo "services    $prefix/lib/systemd/system; $prefix/see $prefix/share/doc/titan/howto/install.md to start them"
