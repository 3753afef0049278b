#pragma once

// The order of lists (AIP-132): "priority desc, create_time".

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "controller/api/job_fields.h"

namespace titan::api {

class OrderBy {
 public:
  // Fields of job_fields.h with commas between, each with "desc" or "asc" behind. Errors: InvalidArgument
  // (ORDER_BY_INVALID).
  static absl::StatusOr<OrderBy> parse(const std::string& text);

  // A strict order of all jobs: what is not set comes last, and of jobs that are alike the newest first.
  bool before(const core::JobView& a, const core::JobView& b) const;

  // A job's place, for the token of the page after it.
  std::string place(const core::JobView& job) const;
  // Whether a job comes after that place, also when the job there has changed or gone. Errors: InvalidArgument for what
  // is no place of this order.
  absl::StatusOr<std::function<bool(const core::JobView&)>> after(const std::string& place) const;

 private:
  struct Key {
    Field field;
    bool descending = false;
  };
  using Values = std::vector<FieldValue>;
  Values values(const core::JobView& job) const;
  bool before(const Values& a, int64_t order_a, const Values& b, int64_t order_b) const;

  std::vector<Key> keys_;
};

}  // namespace titan::api
