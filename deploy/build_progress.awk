# Shows ninja's progress and the remaining time, by finished work instead of finished files: a file with LibTorch's headers takes as
# long as several others.
#
#   ninja -n ... >PLAN; NINJA_STATUS='[%f/%t %e] ' ninja ... | awk -v every=N -v plan=PLAN -f build_progress.awk
#
# every=1: one moving line, for a terminal; else a line per N files, for a log. PLAN: ninja's dry run.

# Approximate seconds of one core; only their proportions matter.
function weight(line) {
  if (line ~ /torch_pch/) return 60
  if (line ~ /Linking/) return line ~ /Linking CXX static/ ? 1 : 4
  if (line !~ /Building/) return 1
  if (line ~ /worker\/rank\/(checkpoint|comm|data|kernels|model|nn|optim|parallel|runtime|tools)\/|tests\/(bench|numerics|testing)\//) return 40
  return 10
}

function left(seconds) {
  if (seconds < 90) return sprintf("%d s", int(seconds / 5 + 1) * 5)
  return sprintf("%d min", int(seconds / 60 + 0.5))
}

function say(text) {
  if (every == 1) printf "\r%-60s", "  " text
  else print "  " text
  fflush()
}

BEGIN {
  while ((getline line < plan) > 0) if (line ~ /^\[/) total += weight(line)
}

/^\[[0-9]+\/[0-9]+ [0-9.]+\]/ {
  split(substr($1, 2), at, "/")
  if (at[1] == 0) next  # Checks before ninja starts.
  elapsed = substr($2, 1, length($2) - 1) + 0
  done += weight($0)
  finished = at[1] == at[2]
  if (every != 1 && at[1] % every != 0 && !finished) next
  shown = 1
  text = "built " at[1] " of " at[2]
  # The first files predict little: the precompiled header is built alone, and every cache is cold.
  known = done < total && elapsed >= 5 && done >= total / 100
  say(finished ? text " in " int(elapsed + 0.5) " s" : known ? text ", about " left(elapsed * (total - done) / done) " left" : text)
}

END { if (shown && every == 1) printf "\n" }
