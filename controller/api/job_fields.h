#pragma once

// Names the fields of a job that lists can be filtered and sorted by, and parses the order of lists (AIP-132).

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "controller/core/view.h"

namespace titan::api {

enum class FieldKind { kText, kState, kNumber, kTime };

// Empty when the field is unset; times are nanoseconds since 1970. Text lives as long as the view.
using FieldValue = std::variant<std::monostate, absl::string_view, int64_t>;

// A field of a job and how to read it.
struct JobField {
  FieldKind kind = FieldKind::kText;
  std::function<FieldValue(const core::JobView&)> value;
};

// Finds the field with a path such as "state", "labels.team" or "progress.step"; nothing for an unknown path.
std::optional<JobField> find_field(const std::string& path);
// Returns the names of all fields, for messages.
const std::vector<std::string>& field_names();

// The order of a list, such as "priority desc, create_time".
class OrderBy {
 public:
  // Parses fields separated by commas, each optionally followed by "desc" or "asc". Errors: InvalidArgument
  // (ORDER_BY_INVALID).
  static absl::StatusOr<OrderBy> parse(const std::string& text);

  // Orders jobs strictly: unset values come last, and among equal jobs the newest comes first.
  bool before(const core::JobView& a, const core::JobView& b) const;

  // Returns a job's place in this order, for the token of the next page.
  std::string place(const core::JobView& job) const;
  // Returns a predicate for jobs after that place, which works even when the job there has changed or is gone. Errors:
  // InvalidArgument for a text that is not a place of this order.
  absl::StatusOr<std::function<bool(const core::JobView&)>> after(const std::string& place) const;

 private:
  struct Key {
    JobField field;
    bool descending = false;
  };
  using Values = std::vector<FieldValue>;
  Values values(const core::JobView& job) const;
  bool before(const Values& a, int64_t order_a, const Values& b, int64_t order_b) const;

  std::vector<Key> keys_;
};

}  // namespace titan::api
