#include "worker/node/shim/memory_kills.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/node/shim/process.h"
#include "worker/node/shim/say.h"

namespace titan::shim {
namespace {

constexpr int64_t kDiesWithin = 30 * kSecond;  // A killed process dies within it, even one with much memory.

}  // namespace

void check_oom_kills(MemoryKills& kills) {
  const int64_t count = kills.counter.read(), now = monotonic_nanos();
  if (std::exchange(kills.looked, count) != count) kills.changed_at = now;
  if (now - kills.changed_at > kDiesWithin) kills.seen = std::max(kills.seen, count);
}

bool take_kill(MemoryKills& kills) {
  if (kills.counter.read() <= kills.seen) return false;
  ++kills.seen;
  return true;
}

void check_group_entry(MemoryKills& kills, const ControlGroup& group, pid_t rank) {
  if (!group) return;
  const std::vector<pid_t> in_it = group_processes(group.folder);
  if (std::find(in_it.begin(), in_it.end(), rank) != in_it.end() || !alive(rank, start_ticks(rank))) return;
  say(absl::StrCat("process ", rank, " could not enter the control group ", group.folder));
  kills.counter = OutOfMemoryCounter({});
  kills.seen = kills.counter.read();
}

}  // namespace titan::shim
