#pragma once

// Carries out the verb `wait`, and parses and checks what its --for names.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// Target of `titanctl wait --for`: the job's end, a state, "step=N" or "committed=N".
class WaitTarget {
 public:
  // Parses the value of --for. Errors: InvalidArgument.
  static absl::StatusOr<WaitTarget> parse(const std::string& text);

  bool is_end() const { return text_.empty(); }
  bool reached(const v1::Job& job) const;
  // Checks whether the job can reach the target: OutOfRange when it ends at an earlier step.
  absl::Status check(const v1::Job& job) const;

 private:
  std::string text_;
  std::string state_;
  int64_t step_ = -1;
  int64_t committed_ = -1;
};

}  // namespace titan::cli
