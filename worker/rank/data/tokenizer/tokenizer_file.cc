#include "worker/rank/data/tokenizer/tokenizer_file.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/tokenizer_files/chat_template_text.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/tokenizer/tokenizer_json.h"
#include "worker/rank/data/tokenizer/tokenizer_pipeline.h"
#include "worker/rank/data/tokenizer/tokenizer_vocabulary.h"

namespace titan::data {
namespace {

using nlohmann::json;

// Added tokens, whose ids have to fit to the model's.
class FileReader {
 public:
  absl::Status model(const json& root) { return read_model(root, file_, ids_); }

  absl::Status added_tokens(const json& root) {
    const json* tokens = member(root, "added_tokens");
    if (tokens == nullptr) return absl::OkStatus();
    if (!tokens->is_array()) return bad("added_tokens is not an array");
    for (const json& token : *tokens) {
      const std::string content = text_of(token, "content");
      const json* id = token.is_object() ? member(token, "id") : nullptr;
      if (content.empty() || id == nullptr || !id->is_number_integer()) {
        return bad(absl::StrCat("added_tokens: ", token.dump(), " has no \"content\" and integer \"id\""));
      }
      TITAN_RETURN_IF_ERROR(add_token(token, content, id->get<int64_t>()));
    }
    return absl::OkStatus();
  }

  // BOS and EOS, and special tokens that only the config knows (they get the next free ids, as in torchtitan).
  absl::Status config(const json& config) {
    for (const char* key :
         {"bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"}) {
      const json* value = member(config, key);
      if (value == nullptr) continue;
      const std::string content = value->is_object() ? text_of(*value, "content") : text_of(config, key);
      if (content.empty()) return bad(absl::StrCat(key, ": ", value->dump(), " is not a token"));
      TITAN_ASSIGN_OR_RETURN(const int32_t id, special_token(*value, content));
      if (std::string(key) == "bos_token") file_.bos_id = id;
      if (std::string(key) == "eos_token") file_.eos_id = id;
    }
    if (const json* decoder = member(config, "added_tokens_decoder"); decoder != nullptr && decoder->is_object()) {
      for (const auto& [id, token] : decoder->items()) {
        const std::string content = text_of(token, "content");
        if (content.empty()) continue;
        TITAN_RETURN_IF_ERROR(special_token(token, content).status());
      }
    }
    return absl::OkStatus();
  }

  // The tokens that the post-processor puts around a text.
  absl::Status check_template() const {
    for (const std::vector<int32_t>* side : {&file_.prefix, &file_.suffix}) {
      for (const int32_t id : *side) {
        if (!ids_.by_id.contains(id)) return bad(absl::StrCat("post_processor: no token has the id ", id));
      }
    }
    return absl::OkStatus();
  }

  TokenizerFile& file() { return file_; }
  TokenizerFile take() {
    file_.size = static_cast<int64_t>(ids_.by_token.size());
    return std::move(file_);
  }

 private:
  absl::Status add_token(const json& token, const std::string& content, int64_t id) {
    if (flag(token, "single_word")) {
      return bad(absl::StrCat("added token \"", content, "\": single_word is not supported"));
    }
    TITAN_ASSIGN_OR_RETURN(const int32_t number, checked_id(content, id));
    const auto known = ids_.by_token.find(content);
    const auto other = ids_.by_id.find(number);
    if ((known != ids_.by_token.end() && known->second != number) ||
        (other != ids_.by_id.end() && other->second != content)) {
      return bad(absl::StrCat("added token \"", content, "\" with id ", number, ": id ", number, " is ",
                              other == ids_.by_id.end() ? "free" : absl::StrCat("\"", other->second, "\""),
                              " in model.vocab, whose own id of this token is ",
                              known == ids_.by_token.end() ? "missing" : absl::StrCat(known->second)));
    }
    ids_.by_token[content] = number;
    ids_.by_id[number] = content;
    AddedToken added;
    added.id = number;
    added.content = content;
    added.special = flag(token, "special");
    added.lstrip = flag(token, "lstrip");
    added.rstrip = flag(token, "rstrip");
    added.normalized = flag(token, "normalized", !added.special);
    file_.added_tokens.push_back(std::move(added));
    return absl::OkStatus();
  }

  absl::StatusOr<int32_t> special_token(const json& description, const std::string& content) {
    for (const AddedToken& token : file_.added_tokens) {
      if (token.content == content) return token.id;
    }
    const auto known = ids_.by_token.find(content);
    json token = description.is_object() ? description : json::object();
    token["special"] = true;
    if (!token.contains("normalized")) token["normalized"] = false;
    const int64_t id = known != ids_.by_token.end() ? known->second : next_id();
    TITAN_RETURN_IF_ERROR(add_token(token, content, id));
    return static_cast<int32_t>(id);
  }

  int64_t next_id() const {
    int64_t next = 0;
    for (const auto& [id, content] : ids_.by_id) next = std::max<int64_t>(next, id + 1);
    return next;
  }

  TokenizerFile file_;
  TokenIds ids_;
};

}  // namespace

absl::StatusOr<TokenizerFile> read_tokenizer_file(const std::string& folder, const std::string& text) {
  const std::string path = absl::StrCat(folder, "/tokenizer.json");
  TITAN_ASSIGN_OR_RETURN(const json root, tokenizer_files::parse_object(path, text));
  FileReader reader;
  try {
    TokenizerFile& file = reader.file();
    // What words are made of decides how the vocabulary is spelled.
    TITAN_RETURN_IF_ERROR(annotate(read_pipeline(root, file), path));
    TITAN_RETURN_IF_ERROR(annotate(reader.model(root), path));
    TITAN_RETURN_IF_ERROR(annotate(reader.added_tokens(root), path));
    TITAN_ASSIGN_OR_RETURN(const json config, tokenizer_files::read_tokenizer_config(folder));
    TITAN_RETURN_IF_ERROR(annotate(reader.config(config), absl::StrCat(folder, "/tokenizer_config.json")));
    TITAN_RETURN_IF_ERROR(annotate(reader.check_template(), path));
  } catch (const json::exception& error) {  // A value of another type than the format's.
    return bad(absl::StrCat(path, ": ", error.what()));
  }
  return reader.take();
}

}  // namespace titan::data
