#pragma once

// Computes with boxes, the rectangular parts of tensors: intersections, runs and cuts. Uses no LibTorch, so that fuzzed
// readers can use it.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace titan::checkpoint {

// A rectangular part of a tensor: indices [offset, offset + shape) in every dim. A scalar has no dims and one element.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;
  int64_t elements() const;
};

// Returns the box of a whole tensor.
Box whole(const std::vector<int64_t>& shape);

// "[2, 3]", for messages.
std::string shape_text(const std::vector<int64_t>& shape);

// Returns the common box; no value if they share no element.
std::optional<Box> intersect(const Box& a, const Box& b);

// Visits the elements of `part` (inside both boxes) as runs that are contiguous in `from` and in `to`, both stored
// row-major: visit(element in from, element in to, count), ascending in `from`. Stops at the first error.
absl::Status for_each_run(const Box& part, const Box& from, const Box& to,
                          absl::FunctionRef<absl::Status(int64_t, int64_t, int64_t)> visit);

// Cuts `part` into boxes of at most `most` elements (at least one), each a contiguous run of it, in order.
std::vector<Box> cut(const Box& part, int64_t most);
// Does the same along dim `dim` only; a box has at least one index of it.
std::vector<Box> cut_along(const Box& part, size_t dim, int64_t most);

// Returns the index of the first element of `part` in the surrounding box `in`, which is stored row-major.
int64_t first_element(const Box& part, const Box& in);

// Checks that the boxes cover a tensor of `shape` exactly once. Errors: DataLoss, says what is missing or covered
// twice.
absl::Status check_cover(const std::vector<int64_t>& shape, const std::vector<Box>& boxes);

}  // namespace titan::checkpoint
