// A node's report on itself: whether it can prepare ranks, and the time on its clock.

#include "absl/strings/str_cat.h"
#include "common/base/text/utf8.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

constexpr size_t kMaxReasonBytes = 1024;
// Certificates, tokens and the times of events are compared across machines. A warning ends below the second limit.
constexpr absl::Duration kClockIsOff = absl::Minutes(1), kClockIsRight = absl::Seconds(30);
constexpr absl::Duration kCaughtUp = absl::Seconds(10);  // Time to handle the messages that waited during a pause.

// Running attempts continue and their reports are used, but nothing new is placed there.
void note_unusable(Step& step, Node& node, const std::string& why, Change& change) {
  const std::string before = std::exchange(node.unusable, why);
  if (before == why) return;
  step.touch(node.record.name);
  if (before.empty() == why.empty()) return;
  update_scheduler_node(step, node);
  if (why.empty()) {
    add_node_event(step, change, node, "NodeUsable", "it takes ranks again", "info");
    request_schedule(step, /*urgent=*/false);
  } else {
    add_node_event(step, change, node, "NodeUnusable", absl::StrCat("takes no ranks: ", why), "warning");
  }
}

// The clocks cannot be compared by a message that this process handled late.
void note_clock(Step& step, Node& node, int64_t unix_nanoseconds, Change& change) {
  const Pauses& pauses = step.state.pauses;
  const absl::Duration now = step.now.monotonic;
  if (unix_nanoseconds <= 0 || pauses.is_paused(now) || pauses.awake_for(now) < kCaughtUp) return;
  const absl::Duration ahead = absl::FromUnixNanos(unix_nanoseconds) - step.now.wall;
  const bool was_off = node.clock_ahead != absl::ZeroDuration();
  const bool is_off = absl::AbsDuration(ahead) > (was_off ? kClockIsRight : kClockIsOff);
  const bool is_another = is_off && absl::AbsDuration(ahead - node.clock_ahead) > kClockIsRight;
  if (is_off == was_off && !is_another) return;
  step.touch(node.record.name);
  node.clock_ahead = is_off ? ahead : absl::ZeroDuration();
  if (is_off == was_off) return;
  if (!is_off)
    return add_node_event(step, change, node, "NodeClockRight", "its clock agrees with the controller's", "info");
  add_node_event(
      step, change, node, "NodeClockOff",
      absl::StrCat("its clock is ", absl::FormatDuration(absl::Trunc(absl::AbsDuration(ahead), absl::Seconds(1))),
                   ahead > absl::ZeroDuration() ? " ahead of" : " behind",
                   " the controller's: times in logs, and the ends of certificates and tokens, do not agree; "
                   "one of the two machines needs its time set (NTP)"),
      "warning");
}

}  // namespace

void note_condition(Step& step, Node& node, const std::string& unusable, int64_t unix_nanoseconds) {
  Change change;
  note_unusable(step, node, text::shortened(unusable, kMaxReasonBytes), change);
  note_clock(step, node, unix_nanoseconds, change);
  if (!change.mutations.empty()) put_node(step, change, node);
  step.commit(std::move(change));
}

}  // namespace titan::core
