#include "worker/rank/checkpoint/loading/grown_vocabulary.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/formats/hugging_face/tied_head.h"

namespace titan::checkpoint {
namespace {

bool has_vocabulary_rows(const Slice& slice) {
  const auto of = [&](const char* fqn) { return absl::EndsWith(slice.key, absl::StrCat(".", fqn)); };
  return slice.shape.size() == 2 && (of(kEmbeddingName) || of(kHeadName));
}

}  // namespace

absl::StatusOr<int64_t> stored_vocabulary(const Manifest& manifest) {
  const std::string key = absl::StrCat("model.", kEmbeddingName);
  for (const TensorRecord& tensor : manifest.tensors) {
    if (tensor.key == key && tensor.shape.size() == 2) return tensor.shape[0];
  }
  return absl::NotFoundError(absl::StrCat("the step has no ", key));
}

absl::StatusOr<int64_t> stored_vocabulary(const HfFolder& weights, const HfMapper& mapper) {
  TITAN_ASSIGN_OR_RETURN(const std::optional<HfLayout> layout, layout_in(weights, mapper, kEmbeddingName));
  if (!layout) return absl::NotFoundError(absl::StrCat(weights.folder(), ": has no embedding"));
  TITAN_ASSIGN_OR_RETURN(const Coded coded, weights.coded(layout->keys[0]));
  return coded.shape.empty() ? 0 : coded.shape[0];
}

std::vector<Slice> first_rows(const std::vector<Slice>& slices, int64_t rows) {
  std::vector<Slice> cut = slices;
  for (Slice& slice : cut) {
    if (!has_vocabulary_rows(slice) || slice.shape[0] <= rows || slice.form != nullptr || slice.store) continue;
    const int64_t begin = std::min(slice.offset[0], rows);
    const int64_t here = slice.local.numel() == 0 ? 0 : slice.local.size(0);
    slice.shape[0] = rows;
    slice.local = slice.local.narrow(0, 0, std::clamp<int64_t>(rows - slice.offset[0], 0, here));
    slice.offset[0] = begin;
  }
  return cut;
}

}  // namespace titan::checkpoint
