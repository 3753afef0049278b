#include "common/service/failpoint/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace titan::failpoint {
namespace {

Failpoint* last = nullptr;  // Failpoints are constructed before main() and never destroyed.

}  // namespace

Failpoint::Failpoint(const char* name) noexcept : name_(name), next_(last) { last = this; }

// Uses SIGKILL, not exit(): nothing may be flushed, closed or logged.
void Failpoint::count() {
  if (left_.fetch_sub(1) != 1) return;
  ::kill(::getpid(), SIGKILL);
  while (true) ::pause();
}

absl::Status arm(absl::string_view text) {
  const size_t colon = text.find(':');
  const absl::string_view name = text.substr(0, colon);
  int64_t passage = 1;
  if (colon != absl::string_view::npos && (!absl::SimpleAtoi(text.substr(colon + 1), &passage) || passage < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("failpoint ", text, ": the number after the colon must be 1 or more"));
  }
  for (Failpoint* point = last; point != nullptr; point = point->next_) {
    if (point->name_ != name) continue;
    point->left_ = passage;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no failpoint ", name, "; --list-failpoints lists all"));
}

absl::Status arm_from_environment() {
  const char* text = std::getenv("TITAN_FAILPOINT");
  return text == nullptr || *text == '\0' ? absl::OkStatus() : arm(text);
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Failpoint* point = last; point != nullptr; point = point->next_) all.emplace_back(point->name_);
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace titan::failpoint
