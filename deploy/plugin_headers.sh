#!/usr/bin/env bash
# Lists the headers that a library of models or datasets is compiled against, and hashes their contents.
#   deploy/plugin_headers.sh list        prints their paths, relative to the tree
#   deploy/plugin_headers.sh hash        prints the hash
#   deploy/plugin_headers.sh write FILE  writes a header that defines the hash, unless it is the same already
set -euo pipefail
cd "$(dirname "$0")/.."

list() { find common worker/rank/{checkpoint,comm,data/loader/batch_source.h,data/plugin,device,model,nn,parallel,pickle,plugin,random,topology,trace} -name '*.h' | LC_ALL=C sort; }
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
