#pragma once

// Text with images in it, for a vision-language model: an image stands in the text as special tokens, one for each
// vector that the image's encoder gives.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data {

// Texts of the special tokens around and for images. The defaults are those of torchtitan's experiment.
struct ImageTokenTexts {
  const char* image = "<|image|>";
  const char* begin = "<|begin_of_image|>";
  const char* end = "<|end_of_image|>";
  const char* pad = "<|pad|>";
};
// Those of Qwen2-VL and Qwen3-VL. A row is filled with the token that ends a document.
inline constexpr ImageTokenTexts kQwenImageTokens{"<|image_pad|>", "<|vision_start|>", "<|vision_end|>",
                                                  "<|endoftext|>"};

// Ids of the special tokens around and for images.
struct ImageTokens {
  int32_t image = 0;  // <|image|>: one of an image's vectors.
  int32_t begin = 0;  // <|begin_of_image|>
  int32_t end = 0;    // <|end_of_image|>
  int32_t pad = 0;    // <|pad|>: fills a row after its text.
  ImageTokenTexts texts = {};
};

// Finds the tokens by their text. Errors: InvalidArgument, names the first one that the tokenizer does not have, or
// that a text does not become because it is not an added token.
absl::StatusOr<ImageTokens> find_image_tokens(Tokenizer& tokenizer, const ImageTokenTexts& texts = {});

// A part of a sample: a text, or an image.
struct TextPart {
  std::string text;
  int64_t image_tokens = -1;  // Vectors of the image; negative: the part is `text`.
  bool is_image() const { return image_tokens >= 0; }
};

// Returns the sample as a text: the parts without anything in between, an image as <|begin_of_image|>, one <|image|>
// for each vector and <|end_of_image|>. White space at both ends is removed; then comes `eos`.
std::string sample_text(const std::vector<TextPart>& parts, std::string_view eos, const ImageTokenTexts& texts = {});

struct SampleTokens {
  std::vector<int32_t> ids;
  std::vector<int32_t>
      labels;  // The ids themselves, not shifted; -100, which the loss ignores, for image and pad tokens.
};

// Tokenizes a sample: the tokens that the tokenizer's files put before a text, and those of sample_text() with the
// tokenizer's EOS. Errors: InvalidArgument if the tokenizer has no EOS, a text is not UTF-8 or names image tokens
// itself, so that there are more of them than vectors.
absl::StatusOr<SampleTokens> tokenize_sample(Tokenizer& tokenizer, const ImageTokens& special,
                                             const std::vector<TextPart>& parts);

}  // namespace titan::data
