// Ranks repeat themselves: a full disk makes a warning of each rank at each logged step, and ten thousand ranks lose
// the same peer. Of one kind the first few are events, then those that show that it goes on.

#include "absl/strings/str_cat.h"
#include "common/base/text/shape.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

constexpr int64_t kToldEach = 3;    // Of one kind; then the 10th, the 100th, ...
constexpr size_t kMostKinds = 200;  // Of one attempt; what is beyond them counts as one kind a reason.

bool is_power_of_ten(int64_t number) {
  while (number >= 10 && number % 10 == 0) number /= 10;
  return number == 1;
}

}  // namespace

// Counts the message and adds the count to it. A restarted controller counts from zero.
bool is_to_be_told(State& state, const AttemptKey& attempt, const std::string& reason, std::string& message) {
  std::map<std::string, int64_t>& counts = state.repeats[attempt];
  std::string kind = absl::StrCat(reason, " ", text::shape_of(message));
  if (counts.size() >= kMostKinds && counts.count(kind) == 0) kind = reason;
  const int64_t count = ++counts[kind];
  if (count == kToldEach)
    absl::StrAppend(&message, " (said 3 times by now: from here on the 10th, the 100th, ... are told)");
  if (count > kToldEach) absl::StrAppend(&message, " (said ", count, " times by now)");
  return count <= kToldEach || is_power_of_ten(count);
}

}  // namespace titan::core
