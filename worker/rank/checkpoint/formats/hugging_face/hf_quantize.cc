#include "worker/rank/checkpoint/formats/hugging_face/hf_quantize.h"

#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::checkpoint {
namespace {

constexpr char kModelPart[] = "model.", kWeightEnd[] = ".weight";
constexpr double kLargestFloat8 = 448;

int64_t block_count(int64_t size) { return (size + kFloat8Block - 1) / kFloat8Block; }

}  // namespace

absl::StatusOr<Float8Matrix> quantize_float8(const at::Tensor& matrix) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  const int64_t down = block_count(rows), across = block_count(columns);
  const at::Tensor padded = at::constant_pad_nd(matrix.to(at::kFloat),
                                                {0, across * kFloat8Block - columns, 0, down * kFloat8Block - rows}, 0);
  const at::Tensor blocks = padded.view({down, kFloat8Block, across, kFloat8Block});
  const at::Tensor largest = blocks.abs().amax({1, 3});
  if (!at::isfinite(largest).all().item<bool>())
    return absl::OutOfRangeError("has NaN or infinite numbers, which float8 with scales cannot hold");
  const at::Tensor scales =
      at::where(largest == 0, at::ones({}), (largest / kLargestFloat8).clamp_min(std::numeric_limits<float>::min()));
  const at::Tensor numbers = (blocks / scales.view({down, 1, across, 1})).view(padded.sizes());
  return Float8Matrix{.numbers = numbers.narrow(0, 0, rows).narrow(1, 0, columns).to(at::kFloat8_e4m3fn).contiguous(),
                      .scales = scales.contiguous()};
}

bool takes_float8(const std::string& fqn, const std::vector<int64_t>& shape) {
  return absl::StartsWith(fqn, "layers.") && shape.size() >= 2 && !absl::StrContains(fqn, ".router.");
}

absl::StatusOr<nlohmann::json> float8_config(const Manifest& manifest, const HfMapper& mapper) {
  const nlohmann::json model = mapper.config();
  if (model.is_null() || model.contains("_class_name"))
    return absl::FailedPreconditionError("float8_block: this family's export has no config.json of transformers");
  nlohmann::json others = {"lm_head"};
  for (const TensorRecord& tensor : manifest.tensors) {
    if (!absl::StartsWith(tensor.key, kModelPart)) continue;
    const std::string fqn = tensor.key.substr(sizeof kModelPart - 1);
    TITAN_ASSIGN_OR_RETURN(const std::vector<HfLayout> layouts, mapper.layouts(fqn));
    const HfLayout* layout = layout_to_write(layouts);
    if (layout == nullptr || tensor.shape.size() < 2) continue;
    if (takes_float8(fqn, tensor.shape)) {
      if (hf_shape(*layout, tensor.shape).size() == 2 && !is_shared(*layout)) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("float8_block: ", tensor.key, " is exported as a part of ", layout->keys[0],
                       ", and not as a matrix with scales for its blocks: export it as bfloat16"));
    }
    for (const std::string& key : layout->keys) {
      if (absl::EndsWith(key, kWeightEnd) && key != "lm_head.weight")
        others.push_back(key.substr(0, key.size() - (sizeof kWeightEnd - 1)));
    }
  }
  return nlohmann::json{{"quant_method", "fp8"},
                        {"fmt", "e4m3"},
                        {"activation_scheme", "dynamic"},
                        {"weight_block_size", {kFloat8Block, kFloat8Block}},
                        {"modules_to_not_convert", std::move(others)}};
}

}  // namespace titan::checkpoint
