#include "worker/rank/data/tokenizer/folder_tokens.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/tokenizer_files/chat_template_text.h"
#include "worker/rank/data/tokenizer/tokenizer_json.h"

namespace titan::data {
namespace {

using nlohmann::json;

constexpr const char* kRoles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};
constexpr char kOthers[] = "additional_special_tokens";

// Returns the file's object; an empty one if there is no such file.
absl::StatusOr<json> read_object(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return json::object();
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return tokenizer_files::parse_object(path, text.str());
}

std::string text_of_token(const json& token) {
  return token.is_object() ? text_of(token, "content") : token.is_string() ? token.get<std::string>() : "";
}

// Collects tokens; the first description of a text counts.
class Collector {
 public:
  absl::Status add(const json& token, int64_t id, const std::string& where) {
    AddedToken added;
    added.content = text_of_token(token);
    if (added.content.empty()) return bad(absl::StrCat(where, ": ", token.dump(), " is not a token"));
    if (token.is_object() && flag(token, "single_word")) {
      return bad(absl::StrCat(where, ": token \"", added.content, "\": single_word is not supported"));
    }
    if (id > kMaxId) return bad(absl::StrCat(where, ": token \"", added.content, "\" has the id ", id));
    added.id = static_cast<int32_t>(id);
    added.special = true;
    added.lstrip = token.is_object() && flag(token, "lstrip");
    added.rstrip = token.is_object() && flag(token, "rstrip");
    const bool known = std::any_of(tokens_.begin(), tokens_.end(),
                                   [&](const AddedToken& other) { return other.content == added.content; });
    if (!known) tokens_.push_back(std::move(added));
    return absl::OkStatus();
  }

  // Adds the entries of an object with ids as keys.
  absl::Status add_decoder(const json& decoder, const std::string& where) {
    if (!decoder.is_object()) return bad(absl::StrCat(where, ": is not an object of ids with tokens"));
    for (const auto& [id, token] : decoder.items()) {
      int64_t number = -1;
      if (!absl::SimpleAtoi(id, &number) || number < 0) return bad(absl::StrCat(where, ": \"", id, "\" is not an id"));
      TITAN_RETURN_IF_ERROR(add(token, number, where));
    }
    return absl::OkStatus();
  }

  std::vector<AddedToken> take() { return std::move(tokens_); }

 private:
  std::vector<AddedToken> tokens_;
};

// Adds the tokens of added_tokens.json, {"<x>": 7}, and of a tokenizer.json.
absl::Status add_files(const std::string& folder, Collector& tokens) {
  const std::string added_path = absl::StrCat(folder, "/added_tokens.json");
  TITAN_ASSIGN_OR_RETURN(const json added, read_object(added_path));
  for (const auto& [text, id] : added.items()) {
    if (!id.is_number_unsigned()) return bad(absl::StrCat(added_path, ": token \"", text, "\" has no id"));
    TITAN_RETURN_IF_ERROR(tokens.add(text, id.get<int64_t>(), added_path));
  }
  const std::string whole_path = absl::StrCat(folder, "/tokenizer.json");
  TITAN_ASSIGN_OR_RETURN(const json whole, read_object(whole_path));
  const json* list = member(whole, "added_tokens");
  if (list == nullptr || !list->is_array()) return absl::OkStatus();
  for (const json& token : *list) {
    const json* id = token.is_object() ? member(token, "id") : nullptr;
    if (id == nullptr || !id->is_number_unsigned()) {
      return bad(absl::StrCat(whole_path, ": added_tokens: ", token.dump(), " has no id"));
    }
    TITAN_RETURN_IF_ERROR(tokens.add(token, id->get<int64_t>(), whole_path));
  }
  return absl::OkStatus();
}

// Returns `config` with the entries of special_tokens_map.json in it.
absl::StatusOr<json> with_special_tokens_map(const std::string& folder, json config) {
  TITAN_ASSIGN_OR_RETURN(const json map, read_object(absl::StrCat(folder, "/special_tokens_map.json")));
  for (const auto& [key, value] : map.items()) {
    if (key != kOthers || !config.contains(kOthers) || !config[kOthers].is_array() || !value.is_array()) {
      config[key] = value;
      continue;
    }
    for (const json& token : value) config[kOthers].push_back(token);
  }
  return config;
}

}  // namespace

absl::StatusOr<FolderTokens> read_folder_tokens(const std::string& folder, const json& config,
                                                const TokenRoles& defaults) {
  const std::string where = absl::StrCat(folder, "/tokenizer_config.json");
  Collector tokens;
  json named = config;
  if (const json* decoder = member(config, "added_tokens_decoder"); decoder != nullptr) {
    TITAN_RETURN_IF_ERROR(tokens.add_decoder(*decoder, absl::StrCat(where, ": added_tokens_decoder")));
  } else {
    TITAN_RETURN_IF_ERROR(add_files(folder, tokens));
    TITAN_ASSIGN_OR_RETURN(named, with_special_tokens_map(folder, std::move(named)));
  }
  FolderTokens found;
  for (const char* role : kRoles) {
    const auto otherwise = defaults.find(role);
    if (!named.contains(role) && otherwise == defaults.end()) continue;
    const json value = named.contains(role) ? named[role] : json(otherwise->second);
    if (value.is_null()) continue;
    TITAN_RETURN_IF_ERROR(tokens.add(value, -1, absl::StrCat(where, ": ", role)));
    found.roles[role] = text_of_token(value);
  }
  if (const json* others = member(named, kOthers); others != nullptr && others->is_array()) {
    for (const json& token : *others) {
      TITAN_RETURN_IF_ERROR(tokens.add(token, -1, absl::StrCat(where, ": ", kOthers)));
    }
  }
  found.tokens = tokens.take();
  return found;
}

void place_tokens(const std::function<std::optional<int32_t>(const std::string&)>& id_of, int32_t size,
                  std::vector<AddedToken>& tokens) {
  for (AddedToken& token : tokens) {
    if (token.id >= 0) continue;
    const std::optional<int32_t> known = id_of(token.content);
    token.id = known ? *known : size++;
  }
}

}  // namespace titan::data
