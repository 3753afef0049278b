#include "worker/rank/data/tokenizer/image_text.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/tokenizer/find_token.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {
namespace {

constexpr int32_t kIgnoredLabel = -100;

absl::StatusOr<int32_t> find_added(Tokenizer& tokenizer, const char* text, const ImageTokenTexts& all) {
  const std::optional<int32_t> id = find_token(tokenizer, text);
  if (!id) {
    return absl::InvalidArgumentError(absl::StrCat("the tokenizer has no token ", text, "; text with images needs ",
                                                   all.image, ", ", all.begin, ", ", all.end, " and ", all.pad,
                                                   " among its added tokens"));
  }
  std::vector<int32_t> tokens;
  TITAN_RETURN_IF_ERROR(tokenizer.encode(text, tokens));
  if (std::count(tokens.begin(), tokens.end(), *id) == 1) return *id;
  return absl::InvalidArgumentError(absl::StrCat("the tokenizer's token ", text, " (", *id,
                                                 ") is not an added token: a text of this name becomes other tokens"));
}

// Python's white space, which also includes four separators of ASCII.
bool is_python_space(uint32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

std::string_view stripped(std::string_view text) {
  size_t begin = 0, end = 0;
  bool started = false;
  for (size_t at = 0; at < text.size();) {
    const Decoded next = decode_utf8(text, at);
    const bool space = is_python_space(next.code_point);
    if (!space && !started) begin = at;
    started = started || !space;
    at += next.length;
    if (!space) end = at;
  }
  return text.substr(begin, end - begin);
}

}  // namespace

absl::StatusOr<ImageTokens> find_image_tokens(Tokenizer& tokenizer, const ImageTokenTexts& texts) {
  ImageTokens tokens{.texts = texts};
  TITAN_ASSIGN_OR_RETURN(tokens.image, find_added(tokenizer, texts.image, texts));
  TITAN_ASSIGN_OR_RETURN(tokens.begin, find_added(tokenizer, texts.begin, texts));
  TITAN_ASSIGN_OR_RETURN(tokens.end, find_added(tokenizer, texts.end, texts));
  TITAN_ASSIGN_OR_RETURN(tokens.pad, find_added(tokenizer, texts.pad, texts));
  return tokens;
}

std::string sample_text(const std::vector<TextPart>& parts, std::string_view eos, const ImageTokenTexts& texts) {
  std::string joined;
  for (const TextPart& part : parts) {
    if (!part.is_image()) {
      joined += part.text;
      continue;
    }
    joined += texts.begin;
    for (int64_t i = 0; i < part.image_tokens; ++i) joined += texts.image;
    joined += texts.end;
  }
  return std::string(stripped(joined)).append(eos);
}

absl::StatusOr<SampleTokens> tokenize_sample(Tokenizer& tokenizer, const ImageTokens& special,
                                             const std::vector<TextPart>& parts) {
  if (!tokenizer.eos_id()) return absl::InvalidArgumentError("the tokenizer has no EOS token, which ends a sample");
  int64_t images = 0;
  for (const TextPart& part : parts) {
    if (!is_utf8(part.text)) return absl::InvalidArgumentError("text is not UTF-8");
    images += std::max<int64_t>(part.image_tokens, 0);
  }
  SampleTokens sample;
  sample.ids = tokenizer.prefix();
  TITAN_RETURN_IF_ERROR(
      tokenizer.encode(sample_text(parts, tokenizer.spelling(*tokenizer.eos_id()), special.texts), sample.ids));
  const auto found = std::count(sample.ids.begin(), sample.ids.end(), special.image);
  if (found != images) {
    return absl::InvalidArgumentError(absl::StrCat("the sample has ", found, " tokens ", special.texts.image, " for ",
                                                   images, " vectors of images; does a text of it name this token?"));
  }
  sample.labels = sample.ids;
  const bool pad_ends = special.pad == *tokenizer.eos_id();  // Qwen's: then the end of a sample is predicted.
  for (int32_t& label : sample.labels) {
    const bool pad = label == special.pad && !pad_ends;
    if (label == special.image || label == special.begin || label == special.end || pad) {
      label = kIgnoredLabel;
    }
  }
  return sample;
}

}  // namespace titan::data
