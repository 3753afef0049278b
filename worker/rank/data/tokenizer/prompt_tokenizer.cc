#include "worker/rank/data/tokenizer/prompt_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/tokenizer_files/chat_template_text.h"
#include "common/io/tokenizer_files/find_tokenizer.h"
#include "worker/rank/data/tokenizer/clip_files.h"
#include "worker/rank/data/tokenizer/find_token.h"
#include "worker/rank/data/tokenizer/folder_tokens.h"
#include "worker/rank/data/tokenizer/t5_files.h"
#include "worker/rank/data/tokenizer/tokenizer_json.h"

namespace titan::data {
namespace {

using nlohmann::json;
using Kind = PromptTokenizer::Kind;
using tokenizer_files::Found;
using tokenizer_files::TokenizerFileKind;

constexpr int64_t kClipPositions = 77;
constexpr int64_t kMaxLength = 1 << 20;  // transformers writes 10^30 for a tokenizer without a limit.

struct KindOf {
  Kind kind;
  std::string source;
};

// Returns the folder's config.json, which describes its model; an empty object if there is none.
absl::StatusOr<json> read_model_config(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/config.json");
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return json::object();
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return tokenizer_files::parse_object(path, text.str());
}

std::optional<Kind> kind_of_class(std::string_view name) {
  if (name == "CLIPTokenizer" || name == "CLIPTokenizerFast") return Kind::kClip;
  if (name == "T5Tokenizer" || name == "T5TokenizerFast") return Kind::kT5;
  return std::nullopt;
}

std::optional<Kind> kind_of_model(std::string_view type) {
  if (type == "clip" || type == "clip_text_model") return Kind::kClip;
  if (type == "t5" || type == "mt5" || type == "umt5") return Kind::kT5;
  return std::nullopt;
}

std::optional<Kind> kind_of_json(const std::string& bytes) {
  const json root = json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  const json* model = root.is_object() ? member(root, "model") : nullptr;
  if (model == nullptr || !model->is_object()) return std::nullopt;
  if (text_of(*model, "type") == "Unigram") return Kind::kT5;
  return text_of(*model, "end_of_word_suffix") == "</w>" ? std::optional(Kind::kClip) : std::nullopt;
}

std::optional<Kind> kind_of_files(const Found& found) {
  switch (found.kind) {
    case TokenizerFileKind::kT5:
      return Kind::kT5;
    case TokenizerFileKind::kClip:
      return Kind::kClip;
    case TokenizerFileKind::kJson:
      return kind_of_json(found.bytes);
    case TokenizerFileKind::kSentencePiece:
    case TokenizerFileKind::kTiktoken:
      break;
  }
  return std::nullopt;
}

absl::StatusOr<KindOf> find_kind(const std::string& folder, const Found& found) {
  TITAN_ASSIGN_OR_RETURN(const json config, tokenizer_files::read_tokenizer_config(folder));
  if (const std::string name = text_of(config, "tokenizer_class"); !name.empty()) {
    if (const auto kind = kind_of_class(name)) return KindOf{*kind, "tokenizer_config.json"};
    return bad(absl::StrCat(folder, "/tokenizer_config.json: tokenizer_class is \"", name,
                            "\"; prompts of images need T5Tokenizer or CLIPTokenizer"));
  }
  TITAN_ASSIGN_OR_RETURN(const json model, read_model_config(folder));
  if (const auto kind = kind_of_model(text_of(model, "model_type"))) return KindOf{*kind, "config.json"};
  if (const auto kind = kind_of_files(found)) {
    return KindOf{*kind, std::filesystem::path(found.path).filename().string()};
  }
  if (absl::StrContains(absl::AsciiStrToLower(folder), "clip")) return KindOf{Kind::kClip, "the folder's path"};
  return bad(absl::StrCat(folder, ": is neither T5's nor CLIP's tokenizer: tokenizer_config.json has no ",
                          "tokenizer_class, config.json no model_type t5 or clip, and ", found.path,
                          " is not of either kind"));
}

absl::StatusOr<Found> find_files(const std::string& folder) {
  auto found = tokenizer_files::find_python_tokenizer(folder);
  return found.ok() ? found : tokenizer_files::find_tokenizer(folder);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> load_files(const std::string& folder, const Found& found) {
  if (found.kind == TokenizerFileKind::kT5) return load_t5_tokenizer(folder, found.bytes);
  if (found.kind == TokenizerFileKind::kClip) return load_clip_tokenizer(folder, found.bytes);
  return Tokenizer::load(folder);
}

absl::Status check_files(const std::string& folder, const KindOf& kind, const Found& found) {
  const TokenizerFileKind other = kind.kind == Kind::kT5 ? TokenizerFileKind::kClip : TokenizerFileKind::kT5;
  const bool fits = found.kind != other && found.kind != TokenizerFileKind::kTiktoken;
  if (fits) return absl::OkStatus();
  return bad(absl::StrCat(folder, ": ", kind.source, " says that this is ", kind.kind == Kind::kT5 ? "T5" : "CLIP",
                          "'s tokenizer, which is in ",
                          kind.kind == Kind::kT5 ? "spiece.model" : "vocab.json and merges.txt",
                          " or tokenizer.json, but the folder holds ", found.path));
}

// Returns an integer of `object` if it is a length.
std::optional<int64_t> length_in(const json& object, const char* key) {
  const json* value = member(object, key);
  if (value == nullptr || !value->is_number_integer()) return std::nullopt;
  const auto length = value->get<int64_t>();
  return length > 0 && length <= kMaxLength ? std::optional(length) : std::nullopt;
}

std::optional<int64_t> positions_in(const json& model) {
  const json* text = member(model, "text_config");
  if (text != nullptr && text->is_object() && text->contains("max_position_embeddings")) {
    return length_in(*text, "max_position_embeddings");
  }
  return length_in(model, "max_position_embeddings");
}

TokenRoles default_roles(Kind kind) {
  if (kind == Kind::kT5) return {{"eos_token", "</s>"}, {"pad_token", "<pad>"}};
  return {{"bos_token", "<|startoftext|>"}, {"eos_token", "<|endoftext|>"}, {"pad_token", "<|endoftext|>"}};
}

}  // namespace

absl::StatusOr<PromptTokenizer> PromptTokenizer::load(const std::string& folder, int64_t length) {
  TITAN_ASSIGN_OR_RETURN(const Found found, find_files(folder));
  TITAN_ASSIGN_OR_RETURN(const KindOf kind, find_kind(folder, found));
  TITAN_RETURN_IF_ERROR(check_files(folder, kind, found));
  PromptTokenizer prompts;
  TITAN_ASSIGN_OR_RETURN(prompts.tokenizer_, load_files(folder, found));
  prompts.kind_ = kind.kind;
  prompts.kind_source_ = kind.source;
  prompts.from_python_files_ = found.kind == TokenizerFileKind::kT5 || found.kind == TokenizerFileKind::kClip;
  TITAN_RETURN_IF_ERROR(prompts.find_ends(folder));
  TITAN_RETURN_IF_ERROR(prompts.choose_length(folder, length));
  return prompts;
}

absl::StatusOr<PromptTokenizer> PromptTokenizer::load_for_test(const std::string& folder, int64_t length) {
  PromptTokenizer prompts;
  TITAN_ASSIGN_OR_RETURN(prompts.tokenizer_, Tokenizer::load(folder));
  prompts.kind_source_ = "test mode";
  if (length < 1 || length > kMaxLength) return bad(absl::StrCat("a prompt cannot have ", length, " tokens"));
  prompts.length_ = length;
  return prompts;
}

absl::Status PromptTokenizer::find_ends(const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(const json config, tokenizer_files::read_tokenizer_config(folder));
  TITAN_ASSIGN_OR_RETURN(const FolderTokens tokens, read_folder_tokens(folder, config, default_roles(kind_)));
  const auto id_of = [&](const char* role) -> absl::StatusOr<int32_t> {
    const auto text = tokens.roles.find(role);
    if (text == tokens.roles.end()) return bad(absl::StrCat(folder, ": the tokenizer has no ", role));
    for (const AddedToken& token : tokens.tokens) {
      if (token.content == text->second && token.id >= 0) return token.id;
    }
    if (const auto id = find_token(*tokenizer_, text->second)) return *id;
    return bad(absl::StrCat(folder, ": ", role, " \"", text->second, "\" is not in the vocabulary"));
  };
  TITAN_ASSIGN_OR_RETURN(pad_, id_of("pad_token"));
  TITAN_ASSIGN_OR_RETURN(const int32_t last, id_of("eos_token"));
  suffix_ = {last};
  if (kind_ == Kind::kT5) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const int32_t first, id_of("bos_token"));
  prefix_ = {first};
  return absl::OkStatus();
}

absl::Status PromptTokenizer::choose_length(const std::string& folder, int64_t length) {
  TITAN_ASSIGN_OR_RETURN(const json config, tokenizer_files::read_tokenizer_config(folder));
  TITAN_ASSIGN_OR_RETURN(const json model, read_model_config(folder));
  const int64_t unlimited = kMaxLength;
  const int64_t positions = kind_ == Kind::kClip ? positions_in(model).value_or(unlimited) : unlimited;
  const int64_t otherwise = kind_ == Kind::kT5 ? 0 : positions == unlimited ? kClipPositions : positions;
  length_ = length == 0 ? length_in(config, "model_max_length").value_or(otherwise) : length;
  if (length_ == 0) {
    return bad(absl::StrCat(folder, "/tokenizer_config.json: has no model_max_length; give the prompt's length"));
  }
  const auto least = static_cast<int64_t>(prefix_.size() + suffix_.size());
  if (length_ < least || length_ > unlimited) {
    return bad(absl::StrCat("a prompt of ", kind_ == Kind::kT5 ? "T5" : "CLIP", " cannot have ", length_,
                            " tokens: the number is from ", least, " to ", unlimited));
  }
  if (length_ > positions) {
    return bad(absl::StrCat(folder, "/config.json: the encoder has ", positions, " positions (",
                            "max_position_embeddings), but a prompt is to have ", length_, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status PromptTokenizer::encode(std::string_view prompt, int64_t* ids) {
  tokens_ = prefix_;
  const auto length = static_cast<size_t>(length_);
  if (kind_ == Kind::kTest) {
    TITAN_RETURN_IF_ERROR(tokenizer_->encode_document(prompt, tokens_));
    tokens_.resize(length, pad_);
  } else {
    TITAN_RETURN_IF_ERROR(tokenizer_->encode(prompt, tokens_));
    tokens_.resize(std::min(tokens_.size(), length - suffix_.size()));
    // The Python class for T5 leaves out </s> after a text that ends with one.
    const bool ended = kind_ == Kind::kT5 && from_python_files_ && !tokens_.empty() && tokens_.back() == suffix_[0];
    if (!ended) tokens_.insert(tokens_.end(), suffix_.begin(), suffix_.end());
    tokens_.resize(length, pad_);
  }
  std::copy(tokens_.begin(), tokens_.end(), ids);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> PromptTokenizer::full_length(std::string_view prompt) {
  tokens_ = prefix_;
  if (kind_ == Kind::kTest) {
    TITAN_RETURN_IF_ERROR(tokenizer_->encode_document(prompt, tokens_));
  } else {
    TITAN_RETURN_IF_ERROR(tokenizer_->encode(prompt, tokens_));
  }
  return std::ssize(tokens_) + std::ssize(suffix_);
}

absl::Status PromptTokenizer::encode_rows(const std::vector<std::string>& prompts, int64_t* ids) {
  for (size_t row = 0; row < prompts.size(); ++row) {
    const absl::Status status = encode(prompts[row], ids + static_cast<int64_t>(row) * length_);
    if (!status.ok()) return annotate(status, absl::StrCat("prompt ", row));
  }
  return absl::OkStatus();
}

}  // namespace titan::data
