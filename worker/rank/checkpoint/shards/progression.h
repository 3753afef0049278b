#pragma once

// Represents many points by few numbers. The pieces of a tensor that ranks hold lie at regular distances; a checkpoint
// of ten thousand ranks would otherwise list them one by one.

#include <compare>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace titan::checkpoint {

using Point = std::vector<int64_t>;

// The points base + i1 * delta1 + i2 * delta2 + ..., with 0 <= ik < countk. No two points have the same first
// component: there, a step's delta exceeds the span of all steps before it.
struct Progression {
  struct Step {
    int64_t count = 2;
    Point delta;
    auto operator<=>(const Step&) const = default;  // NOLINT(modernize-use-nullptr): misread
  };
  Point base;
  std::vector<Step> steps;  // Innermost first.

  int64_t points() const;
  auto operator<=>(const Progression&) const = default;
};

// Returns few progressions that together have exactly these points, which must be distinct.
std::vector<Progression> fold(std::vector<Point> points);

// Returns all points, ascending. The progressions must have been checked.
std::vector<Point> unfold(const std::vector<Progression>& progressions);

// Checks that every component c of every point lies in [0, limit[c]). Errors: DataLoss, says which does not.
absl::Status check_progression(const Progression& progression, const Point& limit);

// An inclusive range; by default it contains every number in use.
struct Bounds {
  int64_t first = std::numeric_limits<int64_t>::min() / 4, last = std::numeric_limits<int64_t>::max() / 4;
};
// Visits the points with every component c in within[c]. The time depends on their number, not on that of all points.
void for_each_point(const Progression& progression, const std::vector<Bounds>& within,
                    absl::FunctionRef<void(const Point&)> visit);

// Reads integers. Anything else throws nlohmann::json::type_error; so does a number beyond 64 bits, which JSON reads as
// a fraction.
int64_t integer_in(const nlohmann::json& from);
std::vector<int64_t> integers_in(const nlohmann::json& from);

// [[base...], [count, [delta...]], ...]
nlohmann::json to_json(const Progression& progression);
// Throws nlohmann::json's exceptions. The result is unchecked.
Progression progression_from_json(const nlohmann::json& from);

}  // namespace titan::checkpoint
