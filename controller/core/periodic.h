#pragma once

#include "absl/time/time.h"

namespace titan::core {

// Something that is done about every so often, in the first step after the time is over.
class Periodic {
 public:
  explicit Periodic(absl::Duration every) : every_(every) {}

  // True: do it now. The next time counts from now on.
  bool is_due(absl::Duration now) {
    if (now < next_) return false;
    next_ = now + every_;
    return true;
  }

 private:
  absl::Duration every_;
  absl::Duration next_ = absl::ZeroDuration();
};

}  // namespace titan::core
