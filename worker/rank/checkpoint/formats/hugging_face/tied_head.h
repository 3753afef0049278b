#pragma once

// Of models whose head is their embedding: other programs write it too, as the embedding once more or as another one.

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"

namespace titan::checkpoint {

inline constexpr char kEmbeddingName[] = "tok_embeddings.weight", kHeadName[] = "output.weight";
inline constexpr char kHfHeadName[] = "lm_head.weight";  // A name that the tables of names lack.

using ReadPart = absl::FunctionRef<absl::StatusOr<at::Tensor>(const Box& part)>;
// Whether two tensors hold the same numbers in `box`, whatever their types; 4 Mi numbers of each are read at once.
absl::StatusOr<bool> same_numbers(const Box& box, ReadPart a, ReadPart b);

// Why the weights at `path` are refused, by the names that they go by there.
absl::Status another_head(const std::string& path, const std::string& head, const std::string& embedding);

// That a head which Hugging Face weights of such a model hold is the embedding, in a box of its full shape `shape`.
// FailedPrecondition: it is not; or an error of reading them. An embedding that does not fit is left to who reads it.
absl::Status check_hf_head(const HfFolder& weights, const HfMapper& mapper, const std::vector<int64_t>& shape,
                           const Box& box);

}  // namespace titan::checkpoint
