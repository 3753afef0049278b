#include "worker/rank/data/tokenizer/token_decoder.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/status/status.h"
#include "worker/rank/data/tokenizer/byte_tokens.h"
#include "worker/rank/data/tokenizer/metaspace.h"
#include "worker/rank/data/tokenizer/tokenizer_json.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {
namespace {

using nlohmann::json;
using DecoderStep = TokenDecoder::Step;
using Tokens = std::vector<std::string>;

constexpr int kMaxDecoderDepth = 16;  // Deepest nesting of sequences.
constexpr char kReplacement[] = "\uFFFD";

absl::StatusOr<DecoderStep> decode_replace(const json& step) {
  const json* pattern = member(step, "pattern");
  const std::string text = pattern != nullptr && pattern->is_object() ? text_of(*pattern, "String") : "";
  if (text.empty()) return bad("decoder \"Replace\": only a pattern with \"String\" is supported");
  const std::string content = text_of(step, "content");
  if (content.size() > text.size()) {
    return bad(absl::StrCat("decoder \"Replace\": \"", text, "\" with a longer content is not supported"));
  }
  return [text, content](Tokens& tokens) {
    for (std::string& token : tokens) token = absl::StrReplaceAll(token, {{text, content}});
  };
}

// Replaces each run of byte tokens by the characters that it forms, or by one U+FFFD per byte if it is not UTF-8.
absl::StatusOr<DecoderStep> decode_bytes(const json&) {
  return [](Tokens& tokens) {
    Tokens out;
    std::string bytes;
    const auto finish = [&] {
      if (is_utf8(bytes)) {
        if (!bytes.empty()) out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), kReplacement);
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const auto byte = byte_of_token(token)) {
        bytes += static_cast<char>(*byte);
        continue;
      }
      finish();
      out.push_back(std::move(token));
    }
    finish();
    tokens = std::move(out);
  };
}

absl::StatusOr<DecoderStep> decode_fuse(const json&) {
  return [](Tokens& tokens) { tokens = {absl::StrJoin(tokens, "")}; };
}

// Removes the character up to `start` times from the beginning and up to `stop` times from the end of each token.
absl::StatusOr<DecoderStep> decode_strip(const json& step) {
  const auto times = [&](const char* key) {
    const json* value = member(step, key);
    return value != nullptr && value->is_number_unsigned() ? value->get<size_t>() : 0;
  };
  return [character = text_of(step, "content"), start = times("start"), stop = times("stop")](Tokens& tokens) {
    if (character.empty()) return;
    for (std::string& token : tokens) {
      size_t begin = 0, end = token.size();
      for (size_t i = 0; i < start && token.compare(begin, character.size(), character) == 0; ++i)
        begin += character.size();
      const auto ends = [&] {
        return end >= begin + character.size() &&
               token.compare(end - character.size(), character.size(), character) == 0;
      };
      for (size_t i = 0; i < stop && ends(); ++i) end -= character.size();
      token = token.substr(begin, end - begin);
    }
  };
}

// Drops the first token's marks, of which the pre-tokenizer adds one unless it never prepends. In other tokens, marks
// become spaces.
absl::StatusOr<DecoderStep> decode_metaspace(const json& step) {
  TITAN_ASSIGN_OR_RETURN(const Metaspace space, read_metaspace(step, "decoder"));
  return [space](Tokens& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool drop = i == 0 && space.prepend != Metaspace::Prepend::kNever;
      tokens[i] = absl::StrReplaceAll(tokens[i], {{space.mark, drop ? "" : " "}});
    }
  };
}

absl::StatusOr<DecoderStep> make_decoder_step(const std::string& type, const json& step) {
  if (type == "Replace") return decode_replace(step);
  if (type == "ByteFallback") return decode_bytes(step);
  if (type == "Fuse") return decode_fuse(step);
  if (type == "Strip") return decode_strip(step);
  if (type == "Metaspace") return decode_metaspace(step);
  return bad(absl::StrCat("decoder \"", type,
                          "\" is not supported; use Replace, ByteFallback, Fuse, Strip, Metaspace or none"));
}

absl::Status add_decoder_steps(const json& decoder, int depth, TokenDecoder& steps) {
  const std::string type = decoder.is_object() ? text_of(decoder, "type") : "";
  if (type != "Sequence") {
    TITAN_ASSIGN_OR_RETURN(DecoderStep step, make_decoder_step(type, decoder));
    steps.add(std::move(step));
    return absl::OkStatus();
  }
  if (depth == kMaxDecoderDepth) return bad("decoder: \"Sequence\" is nested more than 16 deep");
  const json* parts = member(decoder, "decoders");
  if (parts == nullptr || !parts->is_array()) return bad("decoder: a \"Sequence\" without \"decoders\"");
  for (const json& part : *parts) TITAN_RETURN_IF_ERROR(add_decoder_steps(part, depth + 1, steps));
  return absl::OkStatus();
}

}  // namespace

std::string TokenDecoder::decode(std::vector<std::string> tokens) const {
  for (const Step& step : steps_) step(tokens);
  return absl::StrJoin(tokens, between_);
}

absl::StatusOr<TokenDecoder> read_decoder(const json* decoder) {
  TokenDecoder steps;
  if (decoder == nullptr) {
    steps.join_with_spaces();
    return steps;
  }
  TITAN_RETURN_IF_ERROR(add_decoder_steps(*decoder, 0, steps));
  return steps;
}

}  // namespace titan::data
