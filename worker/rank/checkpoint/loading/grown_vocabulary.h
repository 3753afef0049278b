#pragma once

// Loading of weights into a model with a larger vocabulary (added tokens): the embedding and the head have more rows
// than the stored ones, which are their first.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/shards/manifest.h"
#include "worker/rank/checkpoint/shards/slice.h"

namespace titan::checkpoint {

// Returns the rows of the stored embedding. Errors: those of reading it; NotFound if there is none.
absl::StatusOr<int64_t> stored_vocabulary(const Manifest& manifest);
absl::StatusOr<int64_t> stored_vocabulary(const HfFolder& weights, const HfMapper& mapper);

// Returns the slices with those of embedding and head, and of their optimizer states, cut to the first `rows` rows.
// They share memory with `slices`, so that rows beyond these keep their values.
std::vector<Slice> first_rows(const std::vector<Slice>& slices, int64_t rows);

}  // namespace titan::checkpoint
