#include "worker/rank/checkpoint/formats/hugging_face/tied_head.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/shards/model_mismatch.h"

namespace titan::checkpoint {
namespace {

constexpr int64_t kComparedAtOnce = int64_t{1} << 22;

}  // namespace

absl::StatusOr<bool> same_numbers(const Box& box, ReadPart a, ReadPart b) {
  for (const Box& part : cut(box, kComparedAtOnce)) {
    TITAN_ASSIGN_OR_RETURN(const at::Tensor of_a, a(part));
    TITAN_ASSIGN_OR_RETURN(const at::Tensor of_b, b(part));
    if (!at::equal(of_a.to(at::kDouble), of_b.to(at::kDouble))) return false;
  }
  return true;
}

absl::Status untied_head_error(const std::string& path, const std::string& head, const std::string& embedding) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, kDoesNotFit, ", which ties its head to its embedding: ", head, " differs from ", embedding));
}

absl::Status check_hf_head(const HfFolder& weights, const HfMapper& mapper, const std::vector<int64_t>& shape,
                           const Box& box) {
  TITAN_ASSIGN_OR_RETURN(const std::optional<HfLayout> layout, layout_in(weights, mapper, kEmbeddingName));
  if (!layout || !weights.has(kHfHeadName)) return absl::OkStatus();
  const std::string& embedding = layout->keys.at(0);
  TITAN_ASSIGN_OR_RETURN(const Coded other, weights.coded(embedding));
  if (other.shape != shape) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const Coded own, weights.coded(kHfHeadName));
  if (own.shape != shape) return untied_head_error(weights.folder(), kHfHeadName, embedding);
  TITAN_ASSIGN_OR_RETURN(const bool same, same_numbers(
                                              box, [&](const Box& part) { return weights.read(kHfHeadName, part); },
                                              [&](const Box& part) { return weights.read(embedding, part); }));
  return same ? absl::OkStatus() : untied_head_error(weights.folder(), kHfHeadName, embedding);
}

}  // namespace titan::checkpoint
