#!/usr/bin/env bash
# The headers that a library of models or datasets is compiled against, and one number made of all that they say.
#   deploy/plugin_headers.sh list        their paths, from the top of the tree
#   deploy/plugin_headers.sh hash        the number
#   deploy/plugin_headers.sh write FILE  a header that defines it; untouched when it is the same
set -euo pipefail
cd "$(dirname "$0")/.."

list() { find common worker/rank/{checkpoint,comm,data/plugin,device,model,nn,parallel,pickle,plugin,random,topology,trace} -name '*.h' | LC_ALL=C sort; }
hash() { list | xargs sha256sum | sha256sum | cut -c1-16; }

case "${1:-}" in
  list) list ;;
  hash) hash ;;
  write)
    text="#define TITAN_PLUGIN_HEADERS \"$(hash)\""
    [ "$(cat "$2" 2>/dev/null)" = "$text" ] || echo "$text" > "$2"
    ;;
  *)
    sed -n '2,5p' "$0" >&2
    exit 2
    ;;
esac
