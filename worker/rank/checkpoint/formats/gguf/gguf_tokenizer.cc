#include <algorithm>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/io/tokenizer_files/chat_template_text.h"
#include "common/io/tokenizer_files/find_tokenizer.h"
#include "worker/rank/checkpoint/formats/gguf/gguf_metadata.h"

namespace titan::checkpoint::gguf {
namespace {

// llama.cpp's numbers of the kinds of tokens.
constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;

// Stand for parts of a rule that have no expression.
constexpr char kGpt2Words[] = "ByteLevel", kSingleDigits[] = "Digits";

// The rules by which tokenizers cut texts into words, and llama.cpp's names of them. A rule is the sequence of its
// expressions, as tokenizer.json has them.
const std::map<std::vector<std::string>, std::string>& names_of_rules() {
  const std::string ends = R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::string words = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
  const std::string upper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])", lower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])",
                    suffix = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)", before = R"([^\r\n\p{L}\p{N}]?)";
  static const std::map<std::vector<std::string>, std::string> names = {
      {{kGpt2Words}, "gpt-2"},
      {{kSingleDigits, kGpt2Words}, "smollm"},
      {{words + R"(\p{N}{1,3}|)" + ends}, "llama-bpe"},
      {{words + R"(\p{N}|)" + ends}, "qwen2"},
      {{before + upper + "*" + lower + "+" + suffix + before + upper + "+" + lower + "*" + suffix +
        R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
       "gpt-4o"},
      {{R"(\p{N}{1,3})", "[一-龥\u3040-ゟ゠-ヿ]+",
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
        R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
       "deepseek-v3"},
  };
  return names;
}

// Appends the expressions of a "pre_tokenizer". Returns false for one that cuts in a way that has no name.
bool add_rule(const nlohmann::json& part, std::vector<std::string>& rule) {
  const std::string type = part.value("type", "");
  if (type == "Sequence") {
    const nlohmann::json parts = part.value("pretokenizers", nlohmann::json::array());
    return std::all_of(parts.begin(), parts.end(), [&](const nlohmann::json& one) { return add_rule(one, rule); });
  }
  if (type == "ByteLevel") {
    if (part.value("add_prefix_space", false)) return false;
    if (part.value("use_regex", true)) rule.push_back(kGpt2Words);
    return true;
  }
  if (type == "Digits") {
    rule.push_back(kSingleDigits);
    return part.value("individual_digits", false);
  }
  const nlohmann::json pattern = part.value("pattern", nlohmann::json());
  if (type != "Split" || !pattern.contains("Regex") || part.value("behavior", "") != "Isolated" ||
      part.value("invert", false))
    return false;
  rule.push_back(pattern["Regex"]);
  return true;
}

absl::StatusOr<std::string> name_of_rule(const std::string& path, const nlohmann::json& tokenizer) {
  std::vector<std::string> rule;
  const nlohmann::json part = tokenizer.value("pre_tokenizer", nlohmann::json());
  if (part.is_object() && add_rule(part, rule)) {
    const auto found = names_of_rules().find(rule);
    if (found != names_of_rules().end()) return found->second;
  }
  std::vector<std::string> known;
  for (const auto& [parts, name] : names_of_rules()) known.push_back(name);
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": its pre_tokenizer is none that llama.cpp has a name for among ", absl::StrJoin(known, ", "),
                   ": give the name with --gguf-pre if llama.cpp has one, or another folder with --tokenizer"));
}

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> kinds;
};

absl::StatusOr<Vocabulary> vocabulary_of(const std::string& path, const nlohmann::json& tokenizer, int64_t size) {
  Vocabulary all{.tokens = std::vector<std::string>(static_cast<size_t>(size)),
                 .kinds = std::vector<int32_t>(static_cast<size_t>(size), kUnused)};
  for (int64_t id = 0; id < size; ++id) all.tokens[static_cast<size_t>(id)] = absl::StrCat("[PAD", id, "]");
  const auto set = [&](const std::string& text, int64_t id, int32_t kind) -> absl::Status {
    if (id < 0 || id >= size) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": token \"", text, "\" has id ", id, ", but the model's vocabulary is ", size));
    }
    all.tokens[static_cast<size_t>(id)] = text;
    all.kinds[static_cast<size_t>(id)] = kind;
    return absl::OkStatus();
  };
  for (const auto& [text, id] : tokenizer["model"]["vocab"].items())
    TITAN_RETURN_IF_ERROR(set(text, id.get<int64_t>(), kNormal));
  for (const nlohmann::json& token : tokenizer.value("added_tokens", nlohmann::json::array())) {
    TITAN_RETURN_IF_ERROR(set(token["content"], token["id"], token.value("special", false) ? kControl : kUserDefined));
  }
  return all;
}

std::vector<std::string> merges_of(const nlohmann::json& model) {
  std::vector<std::string> merges;
  for (const nlohmann::json& pair : model.value("merges", nlohmann::json::array())) {
    merges.push_back(pair.is_array() ? absl::StrCat(pair[0].get<std::string>(), " ", pair[1].get<std::string>())
                                     : pair.get<std::string>());
  }
  return merges;
}

// Returns the id of a special token that tokenizer_config.json names, as text or as an object.
std::optional<int64_t> special_id(const nlohmann::json& config, const char* key, const Vocabulary& all) {
  const nlohmann::json value = config.value(key, nlohmann::json());
  const std::string text = value.is_string()   ? value.get<std::string>()
                           : value.is_object() ? value.value("content", "")
                                               : std::string();
  const auto found = std::find(all.tokens.begin(), all.tokens.end(), text);
  if (text.empty() || found == all.tokens.end()) return std::nullopt;
  return found - all.tokens.begin();
}

// Returns whether the tokenizer's template puts the token of `id` before (or after) every text.
bool adds(const nlohmann::json& processor, const std::string& token, bool before) {
  if (!processor.is_object()) return false;
  const auto any = [&](const nlohmann::json& parts) {
    return std::any_of(parts.begin(), parts.end(),
                       [&](const nlohmann::json& part) { return adds(part, token, before); });
  };
  if (processor.value("type", "") == "Sequence") return any(processor.value("processors", nlohmann::json::array()));
  const nlohmann::json single = processor.value("single", nlohmann::json::array());
  if (processor.value("type", "") != "TemplateProcessing" || single.empty()) return false;
  const nlohmann::json& edge = before ? single.front() : single.back();
  return edge.contains("SpecialToken") && edge["SpecialToken"].value("id", "") == token;
}

void add_special_tokens(const nlohmann::json& tokenizer, const nlohmann::json& config, const Vocabulary& all,
                        Metadata& to) {
  const std::pair<const char*, const char*> kinds[] = {
      {"bos_token", "bos"}, {"eos_token", "eos"}, {"pad_token", "padding"}, {"unk_token", "unknown"}};
  for (const auto& [key, name] : kinds) {
    const std::optional<int64_t> id = special_id(config, key, all);
    if (id.has_value()) to.add_count(absl::StrCat("tokenizer.ggml.", name, "_token_id"), *id);
  }
  const nlohmann::json processor = tokenizer.value("post_processor", nlohmann::json());
  for (const bool before : {true, false}) {
    const std::string name = before ? "bos" : "eos";
    const std::optional<int64_t> id = special_id(config, before ? "bos_token" : "eos_token", all);
    const std::string key = absl::StrCat("add_", name, "_token");
    const bool added = id.has_value() && adds(processor, all.tokens[static_cast<size_t>(*id)], before);
    to.add_flag(absl::StrCat("tokenizer.ggml.", key),
                config.contains(key) && config[key].is_boolean() ? config[key].get<bool>() : added);
  }
}

absl::Status add_byte_pairs(const std::string& path, const nlohmann::json& tokenizer, const nlohmann::json& config,
                            int64_t vocab_size, const std::string& split, Metadata& to) {
  const nlohmann::json model = tokenizer.value("model", nlohmann::json());
  if (!model.is_object() || model.value("type", "BPE") != "BPE" || !model.contains("vocab")) {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     ": --format gguf supports tokenizers of byte pairs (\"BPE\"), but this one is of another "
                     "type"));
  }
  std::string name = split;
  if (name.empty()) {
    TITAN_ASSIGN_OR_RETURN(name, name_of_rule(path, tokenizer));
  }
  TITAN_ASSIGN_OR_RETURN(const Vocabulary all, vocabulary_of(path, tokenizer, vocab_size));
  to.add("tokenizer.ggml.model", "gpt2");
  to.add("tokenizer.ggml.pre", name);
  to.add_list("tokenizer.ggml.tokens", all.tokens);
  to.add_list("tokenizer.ggml.token_type", all.kinds);
  to.add_list("tokenizer.ggml.merges", merges_of(model));
  add_special_tokens(tokenizer, config, all, to);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> add_tokenizer(const std::string& folder, int64_t vocab_size,
                                                       const std::string& split, Metadata& to) {
  if (folder.empty()) {
    to.add("tokenizer.ggml.model", "none");
    return std::vector<std::string>{
        "the file has no vocabulary, because the step's job records no tokenizer: give its folder with --tokenizer"};
  }
  TITAN_ASSIGN_OR_RETURN(const tokenizer_files::Found found, tokenizer_files::find_tokenizer(folder));
  if (found.kind != tokenizer_files::TokenizerFileKind::kJson) {
    return absl::FailedPreconditionError(
        absl::StrCat(found.path, ": --format gguf reads tokenizer.json, which ", folder, " lacks"));
  }
  TITAN_ASSIGN_OR_RETURN(const nlohmann::json tokenizer, tokenizer_files::parse_object(found.path, found.bytes));
  TITAN_ASSIGN_OR_RETURN(const nlohmann::json config, tokenizer_files::read_tokenizer_config(folder));
  TITAN_RETURN_IF_ERROR(add_byte_pairs(found.path, tokenizer, config, vocab_size, split, to));
  const absl::StatusOr<tokenizer_files::ChatTemplateText> chat = tokenizer_files::find_chat_template(folder, config);
  if (chat.ok()) to.add("tokenizer.chat_template", chat->plain);
  if (!chat.ok() && !absl::IsNotFound(chat.status())) return chat.status();
  return std::vector<std::string>();
}

}  // namespace titan::checkpoint::gguf
