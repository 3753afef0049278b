#pragma once

// For models with tied embeddings. Other programs write a head, too: a copy of the embedding, or a different one.

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
inline constexpr char kHfHeadName[] = "lm_head.weight";  // The tables of names lack this name.

// Reads a part, `[part.shape...]`, of a tensor.
using ReadPart = absl::FunctionRef<absl::StatusOr<at::Tensor>(const Box& part)>;
// Returns whether two tensors hold the same numbers in `box`, whatever their types. Reads 4 Mi numbers of each at once.
absl::StatusOr<bool> same_numbers(const Box& box, ReadPart a, ReadPart b);

// Returns the error for weights at `path` with a different head. `head` and `embedding` are the names there.
absl::Status untied_head_error(const std::string& path, const std::string& head, const std::string& embedding);

// Checks that a head in the Hugging Face weights of a tied model equals the embedding, in a box of its full shape
// `shape`. FailedPrecondition if it does not; or an error of reading them. An embedding of another shape passes: its
// reader reports it.
absl::Status check_hf_head(const HfFolder& weights, const HfMapper& mapper, const std::vector<int64_t>& shape,
                           const Box& box);

}  // namespace titan::checkpoint
