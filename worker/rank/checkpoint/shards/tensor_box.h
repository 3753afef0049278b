#pragma once

// Computes with boxes, the rectangular parts of tensors: their intersections, runs and cuts. Knows no
// LibTorch, as the readers that are fuzzed do not.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace titan::checkpoint {

// A rectangular part of a tensor: rows [offset, offset + shape) in every dim. A scalar has no dims and one element.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;
  int64_t elements() const;
};

Box whole(const std::vector<int64_t>& shape);

// "[2, 3]", for messages.
std::string shape_text(const std::vector<int64_t>& shape);

// Nothing when they share no element.
std::optional<Box> intersect(const Box& a, const Box& b);

// The elements of `part` (inside both boxes) as runs that are contiguous in `from` and in `to`, both stored row-major:
// visit(element in from, element in to, count), ascending in `from`. Stops at the first error.
absl::Status for_each_run(const Box& part, const Box& from, const Box& to,
                          absl::FunctionRef<absl::Status(int64_t, int64_t, int64_t)> visit);

// `part` in boxes of `most` elements or fewer (of one at least), each a run of it, in their order.
std::vector<Box> cut(const Box& part, int64_t most);
// Likewise along dim `dim` alone: of one index at least.
std::vector<Box> cut_along(const Box& part, size_t dim, int64_t most);

// The number of the first element of `part` in the box around it, which is stored row-major.
int64_t first_element(const Box& part, const Box& in);

// Whether the boxes cover a tensor of `shape` exactly once. The message says what is missing or doubled.
absl::Status check_cover(const std::vector<int64_t>& shape, const std::vector<Box>& boxes);

}  // namespace titan::checkpoint
