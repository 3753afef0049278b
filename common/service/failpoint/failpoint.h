#pragma once

// Failpoints: named places at which a test can kill the process by SIGKILL, to prove that the system recovers. Every
// build contains them, so tests run the code that users run. An unarmed failpoint costs one relaxed load, which is
// negligible next to work on a disk or a network.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace titan::failpoint {

// One failpoint. Declare it at namespace scope next to the code that passes it, so that the program knows all its
// failpoints.
class Failpoint {
 public:
  // `name` is a literal, unique in the program: lower case, parts separated by dots.
  explicit Failpoint(const char* name) noexcept;
  Failpoint(const Failpoint&) = delete;
  Failpoint& operator=(const Failpoint&) = delete;

  // Counts a passage if the failpoint is armed. Does not return when this passage is the armed one.
  void pass() {
    if (left_.load(std::memory_order_relaxed) > 0) count();
  }

 private:
  friend absl::Status arm(absl::string_view text);
  friend std::vector<std::string> names();
  void count();

  const char* const name_;
  Failpoint* const next_;         // List of all failpoints of the program, newest declaration first.
  std::atomic<int64_t> left_{0};  // Passages left until the kill; 0 or less: not armed.
};

// Arms a failpoint: "NAME" kills at the first passage, "NAME:N" at the Nth. Errors: InvalidArgument.
absl::Status arm(absl::string_view text);
// Arms the failpoint that TITAN_FAILPOINT names; does nothing when it is not set. Call it before other threads start.
// Errors: those of arm().
absl::Status arm_from_environment();
// Returns the names of all failpoints of this program, sorted.
std::vector<std::string> names();

}  // namespace titan::failpoint
