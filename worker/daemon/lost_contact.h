#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/text/counted.h"

namespace titan::daemon {

// What the log says while there is no session: each new reason at once, the same one again every half minute, so that
// a daemon with a wrong address does not look healthy. Times are monotonic.
class LostContact {
 public:
  static constexpr absl::Duration kSayAgain = absl::Seconds(30);

  // A try that failed; the line for the log, or nothing.
  std::optional<std::string> failed(const std::string& why, absl::Duration now) {
    if (tries_++ == 0) since_ = now;
    if (why == said_ && now - said_at_ < kSayAgain) return std::nullopt;
    const bool again = why == said_;
    said_ = why;
    said_at_ = now;
    std::string line = absl::StrCat("no session with the controller: ", why);
    if (again) {
      absl::StrAppend(&line, "; ", counted(tries_, "try", "tries"), " in ",
                      absl::FormatDuration(absl::Trunc(now - since_, absl::Seconds(1))),
                      ", ranks train on; --controller names another address");
    }
    return line;
  }

  void found() { *this = {}; }

 private:
  std::string said_;
  absl::Duration said_at_, since_;
  int64_t tries_ = 0;
};

}  // namespace titan::daemon
