#include "worker/rank/data/tokenizer/normalizer.h"

#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/tokenizer/charsmap.h"
#include "worker/rank/data/tokenizer/normal_forms.h"
#include "worker/rank/data/tokenizer/split_pattern.h"
#include "worker/rank/data/tokenizer/tokenizer_json.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 16;  // Deepest nesting of sequences.

size_t longest_result(const std::string& text) { return 1000 * text.size() + 100000; }
absl::Status too_long() { return bad("normalizer: a text becomes more than a thousand times as long"); }

Normalizer::Step form(std::string (*make)(std::string_view)) {
  return [make](std::string& text, bool&) {
    text = make(text);
    return absl::OkStatus();
  };
}

absl::StatusOr<Normalizer::Step> prepend(const json& step) {
  const std::string start = text_of(step, "prepend");
  return [start](std::string& text, bool&) {
    text.insert(0, start);
    return absl::OkStatus();
  };
}

absl::StatusOr<Normalizer::Step> replace(const json& step) {
  SplitPattern::Options options;
  const json* pattern = member(step, "pattern");
  std::string text = pattern != nullptr && pattern->is_object() ? text_of(*pattern, "Regex") : "";
  options.literal = text.empty();
  if (options.literal && pattern != nullptr && pattern->is_object()) text = text_of(*pattern, "String");
  if (text.empty()) return bad("normalizer \"Replace\": pattern holds neither \"Regex\" nor \"String\"");
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<SplitPattern> compiled, SplitPattern::compile(text, options));
  return [compiled, content = text_of(step, "content")](std::string& text, bool& from_start) {
    std::string replaced;
    const size_t limit = longest_result(text);
    const auto part = [&](std::string_view piece, bool matched) {
      if (matched && replaced.empty() && content.empty()) from_start = false;
      replaced += matched ? std::string_view(content) : piece;
      return replaced.size() > limit ? too_long() : absl::OkStatus();
    };
    TITAN_RETURN_IF_ERROR(compiled->parts(text, part));
    text = std::move(replaced);
    return absl::OkStatus();
  };
}

absl::StatusOr<Normalizer::Step> strip(const json& step) {
  return [left = flag(step, "strip_left"), right = flag(step, "strip_right")](std::string& text, bool& from_start) {
    size_t begin = 0, end = text.size();
    if (left) begin = white_space_end(text, 0);
    if (right) end = std::max(begin, white_space_begin(text, end));
    from_start = from_start && begin == 0;
    text = text.substr(begin, end - begin);
    return absl::OkStatus();
  };
}

// Google's rules for neural machine translation: control characters are removed, separators become spaces.
absl::StatusOr<Normalizer::Step> nmt(const json&) {
  return [](std::string& text, bool& from_start) {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const Decoded next = decode_utf8(text, at);
      const uint32_t c = next.code_point;
      const bool gone =
          (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
      const bool space = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                         c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
      if (gone && at == 0) from_start = false;
      if (space) out += ' ';
      if (!gone && !space) out.append(text, at, next.length);
      at += next.length;
    }
    text = std::move(out);
    return absl::OkStatus();
  };
}

absl::StatusOr<Normalizer::Step> strip_accents(const json&) {
  return [](std::string& text, bool& from_start) {
    const std::string kept = without_marks(text);
    from_start = from_start && !kept.empty() && kept.substr(0, 1) == text.substr(0, 1);
    text = kept;
    return absl::OkStatus();
  };
}

absl::StatusOr<Normalizer::Step> precompiled(const json& step) {
  std::string bytes;
  if (!absl::Base64Unescape(text_of(step, "precompiled_charsmap"), &bytes)) {
    return bad("normalizer \"Precompiled\": precompiled_charsmap is not base64");
  }
  absl::StatusOr<Charsmap> map = Charsmap::parse(bytes);
  if (!map.ok()) return annotate(map.status(), "normalizer \"Precompiled\"");
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<CharsmapByCluster> rules, CharsmapByCluster::create(*std::move(map)));
  return [rules](std::string& text, bool&) {
    text = rules->apply(text);
    return absl::OkStatus();
  };
}

absl::StatusOr<Normalizer::Step> make_step(const std::string& type, const json& step) {
  if (type == "NFC") return form(to_nfc);
  if (type == "NFD") return form(to_nfd);
  if (type == "NFKC") return form(to_nfkc);
  if (type == "NFKD") return form(to_nfkd);
  if (type == "Prepend") return prepend(step);
  if (type == "Replace") return replace(step);
  if (type == "Strip") return strip(step);
  if (type == "Nmt") return nmt(step);
  if (type == "Precompiled") return precompiled(step);
  if (type == "Lowercase") return form(to_lower_case);
  if (type == "StripAccents") return strip_accents(step);
  return bad(absl::StrCat("normalizer \"", type,
                          "\" is not supported; use NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, ",
                          "Nmt, Precompiled, Lowercase, StripAccents or none"));
}

absl::Status add_steps(const json& normalizer, int depth, Normalizer& steps) {
  const std::string type = normalizer.is_object() ? text_of(normalizer, "type") : "";
  if (type != "Sequence") {
    TITAN_ASSIGN_OR_RETURN(Normalizer::Step step, make_step(type, normalizer));
    steps.add(std::move(step));
    return absl::OkStatus();
  }
  if (depth == kMaxDepth) return bad("normalizer: \"Sequence\" is nested more than 16 deep");
  const json* parts = member(normalizer, "normalizers");
  if (parts == nullptr || !parts->is_array()) return bad("normalizer: a \"Sequence\" without \"normalizers\"");
  for (const json& part : *parts) TITAN_RETURN_IF_ERROR(add_steps(part, depth + 1, steps));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> Normalizer::apply(std::string_view text, bool* from_start) const {
  std::string result(text);
  const size_t limit = longest_result(result);
  bool kept = true;
  for (const Step& step : steps_) {
    if (result.empty()) break;
    TITAN_RETURN_IF_ERROR(step(result, kept));
    if (result.size() > limit) return too_long();
  }
  if (from_start != nullptr) *from_start = kept;
  return result;
}

absl::StatusOr<Normalizer> read_normalizer(const json& normalizer) {
  Normalizer steps;
  TITAN_RETURN_IF_ERROR(add_steps(normalizer, 0, steps));
  return steps;
}

}  // namespace titan::data
