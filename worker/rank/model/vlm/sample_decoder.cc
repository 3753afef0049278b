#include "worker/rank/model/vlm/sample_decoder.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/images/decode.h"
#include "worker/rank/data/samples/sample_rows.h"

namespace titan::model::vlm {
namespace {

absl::StatusOr<data::SampleImage> decode(const std::string& bytes, const ImageAdapter& adapter) {
  const absl::StatusOr<images::Image> image = images::decode_image(bytes);
  if (!image.ok()) return data::unusable(image.status());
  absl::StatusOr<data::SampleImage> cut = adapter.cut(*image);
  if (!cut.ok()) return data::unusable(cut.status());
  return cut;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ImageTextTokenizer>> ImageTextTokenizer::load(const std::string& key,
                                                                             const std::string& folder,
                                                                             const data::ImageTokenTexts& texts) {
  absl::StatusOr<std::unique_ptr<data::Tokenizer>> tokenizer = data::Tokenizer::load(folder);
  if (!tokenizer.ok()) return annotate(tokenizer.status(), key);
  const absl::StatusOr<data::ImageTokens> special = data::find_image_tokens(**tokenizer, texts);
  if (!special.ok()) return annotate(special.status(), absl::StrCat(key, ": ", folder));
  if (!(*tokenizer)->eos_id()) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": ", folder, ": the tokenizer has no EOS token, which ends a sample"));
  }
  return std::shared_ptr<ImageTextTokenizer>(new ImageTextTokenizer(*std::move(tokenizer), *special));
}

absl::StatusOr<data::SampleTokens> ImageTextTokenizer::encode(const std::vector<data::TextPart>& parts) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return data::tokenize_sample(*tokenizer_, special_, parts);
}

absl::StatusOr<data::MultimodalSample> decode_sample(const data::Sample& sample, const ImageAdapter& adapter,
                                                     const data::MultimodalOptions& limits,
                                                     ImageTextTokenizer& tokenizer) {
  data::MultimodalSample decoded;
  std::vector<data::TextPart> parts;
  for (const data::SamplePart& part : sample.parts) {
    if (part.kind == data::SamplePart::Kind::kText) {
      parts.push_back({.text = part.bytes});
      continue;
    }
    TITAN_ASSIGN_OR_RETURN(data::SampleImage image, decode(part.bytes, adapter));
    parts.push_back({.text = "", .image_tokens = data::image_tokens(image.grid, limits.spatial_merge_size)});
    decoded.images.push_back(std::move(image));
  }
  TITAN_ASSIGN_OR_RETURN(data::SampleTokens tokens, tokenizer.encode(parts));
  decoded.tokens = std::move(tokens.ids);
  decoded.labels = std::move(tokens.labels);
  TITAN_RETURN_IF_ERROR(data::check_sample(decoded, limits));
  TITAN_RETURN_IF_ERROR(adapter.check(decoded));
  return decoded;
}

}  // namespace titan::model::vlm
