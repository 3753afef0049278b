#!/usr/bin/env bash
# Exports headers, compiler flags and a build script for libraries of models or datasets outside this tree.
#   deploy/plugin_sdk.sh [--installed] FOLDER [BUILD_FOLDER]
#   --installed: FOLDER is lib/titan/sdk of an installation, and LibTorch's headers are in lib/titan/torch
#   FOLDER/build my_model.so my_model.cc    # then: experimental.custom_import = "/path/my_model.so"
set -euo pipefail
installed=0
if [ "${1:-}" = --installed ]; then
  installed=1
  shift
fi
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
  sed -n '2,5p' "$0" >&2
  exit 2
fi
source=$(cd "$(dirname "$0")/.." && pwd)
target=$1
build=${2:-$source/build/release}
built=$build/plugin/include/plugin_headers.h
if [ ! -f "$build/plugin/flags" ] || [ ! -f "$built" ]; then
  echo "plugin_sdk.sh: $build has no titan-rank built with LibTorch (plugin/flags is missing); run deploy/build.sh first" >&2
  exit 1
fi
if ! grep -q "\"$("$source/deploy/plugin_headers.sh" hash)\"" "$built"; then
  echo "plugin_sdk.sh: headers have changed since titan-rank was built in $build; run deploy/build.sh first" >&2
  exit 1
fi
mkdir -p "$target/include"
include=$(cd "$target/include" && pwd)
(cd "$source" && deploy/plugin_headers.sh list | xargs cp --parents -t "$include")
cp "$built" "$include/"
torch=
if [ $installed = 1 ]; then
  grep -v '^-isystem' "$build/plugin/flags" > "$target/flags"  # These flags name the build's wheel.
  torch='-isystem "$here/../torch/include" -isystem "$here/../torch/include/torch/csrc/api/include" '
else
  cp "$build/plugin/flags" "$target/flags"
fi
cat > "$target/build" <<SCRIPT
#!/usr/bin/env bash
# build OUTPUT.so SOURCE.cc...: a library for the titan-rank that these headers were exported from.
set -euo pipefail
here=\$(cd "\$(dirname "\$0")" && pwd)
output=\$1
shift
exec \${CXX:-g++} "@\$here/flags" $torch-I "\$here/include" -shared -o "\$output" "\$@"
SCRIPT
chmod +x "$target/build"
