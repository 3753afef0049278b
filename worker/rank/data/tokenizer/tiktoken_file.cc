#include "worker/rank/data/tokenizer/tiktoken_file.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/tokenizer_files/tiktoken.h"
#include "worker/rank/data/tokenizer/tokenizer_json.h"

namespace titan::data {
namespace {

using nlohmann::json;

constexpr const char* kCl100kPattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+";
constexpr const char* kO200kPattern =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|"
    "'d)?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|"
    "'d)?|"
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

struct Encoding {
  const char* name;
  const char* pattern;
  const char* bos;
  const char* eos;
};
constexpr Encoding kEncodings[] = {
    {"llama3", kCl100kPattern, "<|begin_of_text|>", "<|end_of_text|>"},
    {"cl100k_base", kCl100kPattern, "", "<|endoftext|>"},
    {"o200k_base", kO200kPattern, "", "<|endoftext|>"},
};

using Names = std::map<int32_t, std::string>;

std::string reserved(int number) { return absl::StrCat("<|reserved_special_token_", number, "|>"); }

// Llama 3's 256 special tokens follow the ranks.
Names llama3_tokens(int32_t first) {
  std::vector<std::string> names = {"<|begin_of_text|>", "<|end_of_text|>"};
  for (int i = 0; i < 4; ++i) names.push_back(reserved(i));
  names.insert(names.end(), {"<|start_header_id|>", "<|end_header_id|>", reserved(4), "<|eot_id|>"});
  for (int i = 5; names.size() < 256; ++i) names.push_back(reserved(i));
  Names tokens;
  for (const std::string& name : names) tokens[first++] = name;
  return tokens;
}

Names special_tokens(const std::string& encoding, int32_t ranks) {
  if (encoding == "cl100k_base") {
    return {{100257, "<|endoftext|>"},
            {100258, "<|fim_prefix|>"},
            {100259, "<|fim_middle|>"},
            {100260, "<|fim_suffix|>"},
            {100276, "<|endofprompt|>"}};
  }
  if (encoding == "o200k_base") return {{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}};
  return llama3_tokens(ranks);
}

std::string content_of(const json& token) {
  return token.is_object() ? text_of(token, "content") : token.is_string() ? token.get<std::string>() : "";
}

absl::Status rename(const json& config, Names& tokens) {
  const json* decoder = member(config, "added_tokens_decoder");
  if (decoder == nullptr || !decoder->is_object()) return absl::OkStatus();
  for (const auto& [id, token] : decoder->items()) {
    int32_t number = -1;
    if (!absl::SimpleAtoi(id, &number) || number < 0 || number > kMaxId || content_of(token).empty()) {
      return bad(
          absl::StrCat("added_tokens_decoder: \"", id, "\" with ", token.dump(), " is not a token with a number"));
    }
    tokens[number] = content_of(token);
  }
  return absl::OkStatus();
}

// Returns the token that `config` names, else the one called `otherwise`, else none. InvalidArgument if the named one
// does not exist.
absl::StatusOr<std::optional<int32_t>> named_token(const json& config, const char* key, const std::string& otherwise,
                                                   const Names& tokens) {
  const json* named = member(config, key);
  const std::string content = named == nullptr ? otherwise : content_of(*named);
  for (const auto& [id, name] : tokens) {
    if (name == content) return std::optional(id);
  }
  if (named == nullptr) return std::optional<int32_t>();
  return bad(absl::StrCat("tokenizer_config.json: ", key, " ", named->dump(), " is not a special token; ",
                          "add it to added_tokens_decoder with its number"));
}

const Encoding* find_encoding(const std::string& name) {
  const auto* found = std::find_if(std::begin(kEncodings), std::end(kEncodings),
                                   [&](const Encoding& encoding) { return name == encoding.name; });
  return found == std::end(kEncodings) ? nullptr : found;
}

}  // namespace

absl::StatusOr<TokenizerFile> read_tiktoken(std::string_view bytes, const std::string& encoding, const json& config) {
  const std::string named = text_of(config, "tiktoken_encoding");
  const Encoding* chosen = find_encoding(named.empty() ? encoding : named);
  if (chosen == nullptr) {
    return bad(absl::StrCat("tiktoken's encoding \"", named.empty() ? encoding : named,
                            "\" is not supported; tokenizer_config.json may name llama3, cl100k_base or o200k_base as "
                            "tiktoken_encoding"));
  }
  TokenizerFile file;
  TITAN_ASSIGN_OR_RETURN(file.vocabulary, tokenizer_files::parse_tiktoken(bytes));
  file.merges_by_rank = file.ignore_merges = file.byte_level = true;
  file.splits.push_back({chosen->pattern, {}});
  const auto ranks = static_cast<int32_t>(file.vocabulary.size());
  Names tokens = special_tokens(chosen->name, ranks);
  TITAN_RETURN_IF_ERROR(rename(config, tokens));
  TITAN_ASSIGN_OR_RETURN(file.bos_id, named_token(config, "bos_token", chosen->bos, tokens));
  if (file.bos_id) file.prefix = {*file.bos_id};
  TITAN_ASSIGN_OR_RETURN(file.eos_id, named_token(config, "eos_token", chosen->eos, tokens));
  for (const auto& [text, rank] : file.vocabulary) {
    if (const auto taken = tokens.find(rank); taken != tokens.end()) {
      return bad(absl::StrCat("special token \"", taken->second, "\" has the number ", rank, ", which is a rank"));
    }
  }
  for (const auto& [id, name] : tokens) {
    file.added_tokens.push_back({.id = id, .content = name, .special = true});
  }
  file.size = ranks + static_cast<int64_t>(tokens.size());
  return file;
}

}  // namespace titan::data
