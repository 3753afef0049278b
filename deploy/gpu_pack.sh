#!/usr/bin/env bash
# Packs the files for deploy/gpu_check.sh into one folder, for a machine that has a GPU and torch 2.11 but neither this tree
# nor its packages: the stripped programs and tests, their libraries (except torch's, CUDA's and the C library), the text
# assets and the script itself. Run FOLDER/gpu_check.sh there.
#
#   deploy/gpu_pack.sh FOLDER [--build DIR]
#
# FOLDER must not exist or be empty. Prints its size (about 45 MiB).
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
build="$root/build/release" folder=""
fail() { echo "gpu_pack.sh: $*" >&2; exit 1; }
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,8p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    --build) build="$2"; shift 2 ;;
    -*) fail "unknown argument $1 (see --help)" ;;
    *) [ -z "$folder" ] || fail "only one folder is allowed, not $folder and $1"; folder="$1"; shift ;;
  esac
done
[ -n "$folder" ] || fail "name the folder to fill (see --help)"
[ -z "$(ls -A "$folder" 2>/dev/null)" ] || fail "$folder is not empty"
assets="${TITAN_ASSETS:-$root/.deps/assets}"
[ -e "$assets/tokenizer/tokenizer.json" ] || fail "no text assets in $assets: run deploy/make_assets.sh or set TITAN_ASSETS"
programs="bin/titan-rank bin/libtitan_cuda.so tests/gpu_test tests/gpu_rows_bench tests/gpu_ops_bench tests/random_math_test"
for file in $programs; do
  [ -e "$build/$file" ] || fail "$build/$file is missing: build it (ninja all titan_long_tests; libtitan_cuda.so needs TITAN_CUDA=ON)"
done

# Torch's folder is on the programs' run path; its libraries come from the other machine.
torch_lib="$(ldd "$build/bin/titan-rank" | sed -n 's/.*=> \(.*\)\/libtorch_cpu\.so .*/\1/p')"
[ -n "$torch_lib" ] || fail "$build/bin/titan-rank does not find its LibTorch here"
site="$(cd "$torch_lib/../.." && pwd)"
# A machine with torch has these libraries; ours must not hide newer ones there.
system='^(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv|libutil|libanl|libstdc\+\+|libgcc_s)\.so'

listing="$(for file in $programs; do ldd "$build/$file"; done)"
missing="$(grep 'not found' <<<"$listing" | sort -u)" || true
[ -z "$missing" ] || fail "libraries are missing here: $missing"

mkdir -p "$folder"/{bin,tests,lib,assets}
for file in $programs; do strip --strip-unneeded -o "$folder/$file" "$build/$file"; done
sed -n 's/^\s*\(\S*\) => \(\/\S*\) .*/\1 \2/p' <<<"$listing" | sort -u |
  while read -r name path; do
    case "$(readlink -f "$path")" in "$(readlink -f "$site")"/*) continue ;; esac
    if [[ "$name" =~ $system ]]; then continue; fi
    cp -L "$path" "$folder/lib/$name"
    strip --strip-unneeded "$folder/lib/$name"
  done
cp -r "$assets/c4_test" "$assets/tokenizer" "$folder/assets/"
cp "$root/deploy/gpu_check.sh" "$root/deploy/gpu_check.toml" "$root/deploy/gpu_beside.py" "$root/deploy/gpu_torch_llama.py" "$folder/"
git -C "$root" rev-parse --short HEAD >"$folder/revision" 2>/dev/null || echo unknown >"$folder/revision"
echo "$folder: $(du -sm "$folder" | cut -f1) MiB, $(ls "$folder/lib" | wc -l) libraries"
