#pragma once

#include <string>

#include "absl/time/time.h"
#include "controller/cli/access.h"
#include "controller/cli/output.h"

namespace titan::cli {

inline constexpr char kDefaultController[] = "127.0.0.1:7700";
inline constexpr absl::Duration kDefaultTimeout = absl::Seconds(10);

// Flags of every verb.
struct Globals {
  std::string controller = kDefaultController;
  Access access;
  Format format = Format::kTable;
  bool wide = false;  // Tables with all columns.
  absl::Duration timeout =
      kDefaultTimeout;  // Of one call; `wait` and `submit --wait` take it for the whole wait when it is given.
  bool timeout_given = false;

  absl::Duration whole_wait() const { return timeout_given ? timeout : absl::InfiniteDuration(); }
};

}  // namespace titan::cli
