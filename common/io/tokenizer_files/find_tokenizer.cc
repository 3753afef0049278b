#include "common/io/tokenizer_files/find_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/tokenizer_files/sentencepiece.h"
#include "common/io/tokenizer_files/tiktoken.h"
#include "nlohmann/json.hpp"

namespace titan::tokenizer_files {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return std::move(bytes).str();
}

std::vector<std::string> files_with(const std::string& folder, const char* ending) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (absl::EndsWith(entry.path().filename().string(), ending)) files.push_back(entry.path().string());
  }
  return files;
}

}  // namespace

absl::StatusOr<Found> find_tokenizer(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return absl::NotFoundError(absl::StrCat(folder, ": no such folder"));
  const std::string json = absl::StrCat(folder, "/tokenizer.json"), model = absl::StrCat(folder, "/tokenizer.model");
  if (auto bytes = read(json)) return Found{TokenizerFileKind::kJson, json, *std::move(bytes)};
  if (auto bytes = read(model)) {
    // The encoded message of a SentencePiece model begins with its first piece.
    if (looks_like_tiktoken(*bytes)) return Found{TokenizerFileKind::kTiktoken, model, *std::move(bytes)};
    if (!bytes->empty() && (*bytes)[0] == '\n')
      return Found{TokenizerFileKind::kSentencePiece, model, *std::move(bytes)};
    return absl::InvalidArgumentError(absl::StrCat(
        model, ": is neither a SentencePiece model nor tiktoken's lines of a token in base64 and its rank"));
  }
  const std::vector<std::string> others = files_with(folder, ".tiktoken");
  if (others.size() == 1) {
    if (auto bytes = read(others[0])) return Found{TokenizerFileKind::kTiktoken, others[0], *std::move(bytes)};
  }
  if (auto found = find_python_tokenizer(folder); found.ok()) return found;
  return absl::NotFoundError(absl::StrCat(folder, ": holds ", others.size() > 1 ? "several *.tiktoken and " : "",
                                          "no tokenizer.json (Hugging Face), no ",
                                          "tokenizer.model (SentencePiece, or tiktoken as of Llama 3), no single "
                                          "*.tiktoken, no spiece.model (T5) and no vocab.json with merges.txt (CLIP); "
                                          "is this a tokenizer's folder?"));
}

absl::StatusOr<Found> find_python_tokenizer(const std::string& folder) {
  const std::string pieces = absl::StrCat(folder, "/spiece.model"), vocabulary = absl::StrCat(folder, "/vocab.json");
  if (auto bytes = read(pieces)) return Found{TokenizerFileKind::kT5, pieces, *std::move(bytes)};
  std::error_code error;
  const bool merges = fs::is_regular_file(absl::StrCat(folder, "/merges.txt"), error);
  auto bytes = merges ? read(vocabulary) : std::nullopt;
  // GPT-2 has files of these names too, but not this token.
  if (bytes && absl::StrContains(*bytes, "\"<|startoftext|>\"")) {
    return Found{TokenizerFileKind::kClip, vocabulary, *std::move(bytes)};
  }
  return absl::NotFoundError(absl::StrCat(folder, ": holds no spiece.model (T5) and no vocab.json with the token ",
                                          "<|startoftext|> next to a merges.txt (CLIP)"));
}

namespace {

// Returns whether the file has `key` with an object. Searches the text, because parsing a vocabulary takes long. A
// token of this name has a number there, and quotes inside a string are escaped, so neither matches.
bool has_object(const std::string& text, const std::string& key) {
  const std::string quoted = "\"" + key + "\"";
  const auto next_sign = [&text](size_t at) { return text.find_first_not_of(" \t\r\n", at); };
  for (size_t at = text.find(quoted); at != std::string::npos; at = text.find(quoted, at + 1)) {
    const size_t colon = next_sign(at + quoted.size());
    if (colon == std::string::npos || text[colon] != ':') continue;
    const size_t value = next_sign(colon + 1);
    if (value != std::string::npos && text[value] == '{') return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> not_applied(const Found& found) {
  std::vector<std::string> notes;
  if (found.kind != TokenizerFileKind::kJson) return notes;
  if (has_object(found.bytes, "truncation")) {
    notes.push_back(absl::StrCat(found.path,
                                 ": \"truncation\" is not applied: texts keep all their tokens, where tokenizers and "
                                 "torchtitan cut them; set it to null if this is intended"));
  }
  if (has_object(found.bytes, "padding")) {
    notes.push_back(absl::StrCat(found.path,
                                 ": \"padding\" is not applied: no token is added to short texts; set it to null if "
                                 "this is intended"));
  }
  return notes;
}

std::vector<std::string> not_applied(const std::string& folder) {
  const auto found = find_tokenizer(folder);
  return found.ok() ? not_applied(*found) : std::vector<std::string>{};
}

namespace {

using nlohmann::json;

absl::Status bad_json(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("tokenizer.json ", what));
}

absl::StatusOr<int64_t> largest_of_vocabulary(const json& model) {
  const std::string type =
      model.contains("type") && model["type"].is_string() ? model["type"].get<std::string>() : "BPE";
  if (type != "BPE" && type != "Unigram") {
    return bad_json(absl::StrCat("has a model of type ", type, "; BPE and Unigram are read"));
  }
  const json vocab = model.value("vocab", json());
  if (!(type == "BPE" ? vocab.is_object() : vocab.is_array()) || vocab.empty()) {
    return bad_json("has no vocabulary (model.vocab)");
  }
  if (vocab.is_array()) return static_cast<int64_t>(vocab.size()) - 1;
  int64_t largest = -1;
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_integer())
      return bad_json(absl::StrCat("has a vocabulary in which token \"", token, "\" has no number"));
    largest = std::max(largest, id.get<int64_t>());
  }
  return largest;
}

// Returns the tokens that tokenizer_config.json names.
std::vector<std::string> tokens_of_config(const std::string& tokenizer_path) {
  std::ifstream in(tokenizer_path.substr(0, tokenizer_path.rfind('/') + 1) + "tokenizer_config.json");
  const json config = in ? json::parse(in, nullptr, /*allow_exceptions=*/false) : json();
  std::vector<std::string> tokens;
  const auto add = [&tokens](const json& token) {
    const json content = token.is_object() ? token.value("content", json()) : token;
    if (content.is_string() && !content.get<std::string>().empty()) tokens.push_back(content.get<std::string>());
  };
  if (!config.is_object()) return tokens;
  for (const char* key : {"bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"})
    add(config.value(key, json()));
  const json decoder = config.value("added_tokens_decoder", json());
  if (decoder.is_object()) {
    for (const auto& [id, token] : decoder.items()) add(token);
  }
  return tokens;
}

// Returns the largest id with tokens that only tokenizer_config.json defines, which get the next ids in its order
// (worker/rank/data/tokenizer/tokenizer_file.cc).
int64_t with_tokens_of_config(const std::string& tokenizer_path, const json& tokenizer, int64_t largest) {
  std::set<std::string> known;
  for (const json& added : tokenizer.value("added_tokens", json::array())) {
    if (added.is_object() && added.value("content", json()).is_string()) known.insert(added["content"]);
  }
  const json& vocab = tokenizer["model"]["vocab"];
  if (vocab.is_array()) {
    for (const json& piece : vocab) {
      if (piece.is_array() && !piece.empty() && piece[0].is_string()) known.insert(piece[0]);
    }
  }
  for (const std::string& token : tokens_of_config(tokenizer_path)) {
    const bool in_vocabulary = vocab.is_object() && vocab.contains(token);
    if (!in_vocabulary && known.insert(token).second) ++largest;
  }
  return largest;
}

absl::StatusOr<int64_t> largest_of_json(const std::string& path, const std::string& text) {
  const json tokenizer = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (tokenizer.is_discarded() || !tokenizer.is_object() || !tokenizer.contains("model") ||
      !tokenizer["model"].is_object()) {
    return bad_json("is not a Hugging Face tokenizer: no JSON object with a \"model\"");
  }
  TITAN_ASSIGN_OR_RETURN(int64_t largest, largest_of_vocabulary(tokenizer["model"]));
  for (const json& added : tokenizer.value("added_tokens", json::array())) {
    const bool numbered = added.is_object() && added.contains("id") && added["id"].is_number_integer();
    if (numbered) largest = std::max(largest, added["id"].get<int64_t>());
  }
  return with_tokens_of_config(path, tokenizer, largest);
}

absl::StatusOr<int64_t> largest_of_pieces(const Found& found) {
  const auto model = parse_sentencepiece(found.bytes);
  if (!model.ok()) return annotate(model.status(), found.path);
  return static_cast<int64_t>(model->pieces.size()) - 1;
}

absl::StatusOr<int64_t> largest_of_clip(const Found& found) {
  const json vocabulary = json::parse(found.bytes, nullptr, /*allow_exceptions=*/false);
  const auto largest = largest_of_vocabulary({{"type", "BPE"}, {"vocab", vocabulary}});
  if (!largest.ok())
    return absl::InvalidArgumentError(absl::StrCat(found.path, ": is not an object of tokens with ids"));
  return largest;
}

absl::StatusOr<int64_t> largest_of_ranks(const Found& found) {
  const auto tokens = parse_tiktoken(found.bytes);
  if (!tokens.ok()) return annotate(tokens.status(), found.path);
  int64_t largest = -1;
  for (const auto& [token, rank] : *tokens) largest = std::max<int64_t>(largest, rank);
  return largest;
}

}  // namespace

absl::StatusOr<int64_t> largest_id(const Found& found) {
  switch (found.kind) {
    case TokenizerFileKind::kJson:
      return largest_of_json(found.path, found.bytes);
    case TokenizerFileKind::kSentencePiece:
    case TokenizerFileKind::kT5:
      return largest_of_pieces(found);
    case TokenizerFileKind::kClip:
      return largest_of_clip(found);
    case TokenizerFileKind::kTiktoken:
      break;
  }
  return largest_of_ranks(found);
}

}  // namespace titan::tokenizer_files
