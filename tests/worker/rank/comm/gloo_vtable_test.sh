#!/usr/bin/env bash
# Debian's Gloo headers are older than the wheel's code: our objects must not contain a vtable of a Gloo class, or of
# c10d's adapter to one, because its slots would not fit the code that calls them.
set -euo pipefail
status=0
for program in "${TITAN_BIN}/titan-rank" "${TITAN_BIN}/../tests/comm_test"; do
  [ -e "$program" ] || continue
  if found=$(nm -C --defined-only "$program" | grep -E "vtable for (gloo::|c10d::ProcessGroupGloo::GlooStore)"); then
    echo "$program defines:" >&2
    echo "$found" >&2
    status=1
  fi
done
exit $status
