#pragma once

// Many points in few numbers. What ranks hold of a tensor lies at regular distances, and a checkpoint of ten thousand
// ranks would otherwise list them one by one.

#include <compare>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace titan::checkpoint {

using Point = std::vector<int64_t>;

// The points base + i1 * delta1 + i2 * delta2 + ..., with 0 <= ik < countk. The first component of the points is never
// the same twice: a step's is larger than all that the steps before it span.
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

// Few progressions that have exactly these points, which differ from each other.
std::vector<Progression> fold(std::vector<Point> points);

// All points, ascending. The progressions have been checked.
std::vector<Point> unfold(const std::vector<Progression>& progressions);

// Whether every component c of every point lies in [0, limit[c]). DataLoss says what does not.
absl::Status check_progression(const Progression& progression, const Point& limit);

struct Bounds {
  int64_t first = std::numeric_limits<int64_t>::min() / 4, last = std::numeric_limits<int64_t>::max() / 4;
};
// The points whose every component c lies in within[c], in time by their number and not by that of all points.
void for_each_point(const Progression& progression, const std::vector<Bounds>& within,
                    absl::FunctionRef<void(const Point&)> visit);

// Whole numbers. What is none throws nlohmann::json::type_error, also one beyond 64 bits, which reads as a fraction.
int64_t integer_in(const nlohmann::json& from);
std::vector<int64_t> integers_in(const nlohmann::json& from);

// [[base...], [count, [delta...]], ...]
nlohmann::json to_json(const Progression& progression);
// Throws what nlohmann::json throws; the result has yet to be checked.
Progression progression_from_json(const nlohmann::json& from);

}  // namespace titan::checkpoint
