#pragma once

// Turns samples of a dataset into the tokens and patches that a vision-language model learns from.

#include <any>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/data/multimodal/samples.h"
#include "worker/rank/data/samples/sample.h"
#include "worker/rank/data/tokenizer/image_text.h"
#include "worker/rank/data/tokenizer/tokenizer.h"
#include "worker/rank/model/vlm/image_adapter.h"

namespace titan::model::vlm {

// A tokenizer with the special tokens of images. Used by several threads.
class ImageTextTokenizer {
 public:
  // Loads the folder's tokenizer; `texts` are its special tokens. Errors: those of Tokenizer::load and
  // find_image_tokens, and InvalidArgument if it has no EOS token; they begin with `key`, the configuration's key of
  // the folder.
  static absl::StatusOr<std::shared_ptr<ImageTextTokenizer>> load(const std::string& key, const std::string& folder,
                                                                  const data::ImageTokenTexts& texts);

  const data::ImageTokens& special() const { return special_; }
  int32_t max_id() const { return tokenizer_->max_id(); }
  // Tokenizes a sample (data::tokenize_sample).
  absl::StatusOr<data::SampleTokens> encode(const std::vector<data::TextPart>& parts);

 private:
  ImageTextTokenizer(std::unique_ptr<data::Tokenizer> tokenizer, const data::ImageTokens& special)
      : tokenizer_(std::move(tokenizer)), special_(special) {}

  std::mutex mutex_;
  const std::unique_ptr<data::Tokenizer> tokenizer_;
  const data::ImageTokens special_;
};

// Decodes the images of a sample, cuts them into patches and tokenizes its texts around them. InvalidArgument: the
// sample cannot be used, with the reason: an image that is damaged or has an unsuitable shape, or check_sample().
absl::StatusOr<data::MultimodalSample> decode_sample(const data::Sample& sample, const ImageAdapter& adapter,
                                                     const data::MultimodalOptions& limits,
                                                     ImageTextTokenizer& tokenizer);

}  // namespace titan::model::vlm
