#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/text/quantities.h"

namespace titan::daemon {

// Decides what to log while the node has no session: a new reason at once, a known reason again after a minute, then at
// twice the interval up to an hour. A daemon with a wrong address or a refused one must not look healthy, and must not
// fill the log. Times are monotonic.
class LostContact {
 public:
  static constexpr absl::Duration kFirstPause = absl::Minutes(1);
  static constexpr absl::Duration kMaxPause = absl::Hours(1);

  // A connection attempt failed. Returns the line to log, if any.
  std::optional<std::string> failed(const std::string& why, absl::Duration now) {
    if (tries_++ == 0) since_ = now;
    const auto [said, is_new] = said_.try_emplace(why, Said{now, kFirstPause});
    const std::string line = absl::StrCat("no session with the controller: ", why, "; ");
    if (is_new) return absl::StrCat(line, "retrying; running ranks continue");
    Said& before = said->second;
    if (now - before.at < before.pause) return std::nullopt;
    before = {now, std::min(2 * before.pause, kMaxPause)};
    return absl::StrCat(line, counted(tries_, "try", "tries"), " in ",
                        absl::FormatDuration(absl::Trunc(now - since_, absl::Seconds(1))),
                        "; retrying; running ranks continue; set another address with --controller");
  }

  void found() { *this = {}; }

 private:
  struct Said {
    absl::Duration at, pause;  // Time of the last line, and the interval until the next.
  };
  std::map<std::string, Said> said_;  // By reason, so that two alternating reasons are not new each time.
  absl::Duration since_;
  int64_t tries_ = 0;
};

}  // namespace titan::daemon
