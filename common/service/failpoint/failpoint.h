#pragma once

// Places where a program can be made to end as if it had been killed there, so that tests can prove that it may be.
// They are in every build: what is tested is what runs, and a place that is not asked for costs one relaxed load beside
// work that goes to a disk or a network.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace titan::failpoint {

// One place. Declared at namespace scope beside the code that passes it: so a program knows all of its own.
class Point {
 public:
  // `name`: a literal, unique in the program. Lower case, parts separated by dots.
  explicit Point(const char* name) noexcept;
  Point(const Point&) = delete;
  Point& operator=(const Point&) = delete;

  // Does not return when this passage was asked for.
  void pass() {
    if (left_.load(std::memory_order_relaxed) > 0) count();
  }

 private:
  friend absl::Status arm(absl::string_view text);
  friend std::vector<std::string> names();
  void count();

  const char* const name_;
  Point* const next_;             // All of a program's, the one that was declared last first.
  std::atomic<int64_t> left_{0};  // Passages until the end; 0: nobody asked.
};

// Asks for the end at a passage: "NAME" for the first, "NAME:N" for the Nth. Errors: InvalidArgument.
absl::Status arm(absl::string_view text);
// What TITAN_FAILPOINT says; nothing when it is not set. Call before other threads are started. Errors: those of arm().
absl::Status arm_from_environment();
// Of every point of this program, sorted.
std::vector<std::string> names();

}  // namespace titan::failpoint
