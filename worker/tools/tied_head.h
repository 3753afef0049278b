#pragma once

// Of models whose head is their embedding: other programs write it too, as the embedding once more or as another one.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/box.h"

namespace titan::tools {

inline constexpr char kEmbeddingName[] = "tok_embeddings.weight", kHeadName[] = "output.weight";
inline constexpr char kHfHeadName[] = "lm_head.weight";  // A name that the tables of names lack.

using ReadPart = absl::FunctionRef<absl::StatusOr<at::Tensor>(const checkpoint::Box& part)>;
// Whether two tensors of this shape hold the same numbers, whatever their types; 4 Mi numbers of each are read at once.
absl::StatusOr<bool> same_numbers(const std::vector<int64_t>& shape, ReadPart a, ReadPart b);

}  // namespace titan::tools
