#include "worker/data/tokenizer_file.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "nlohmann/json.hpp"
#include "worker/data/byte_alphabet.h"
#include "worker/data/tokenizer_json.h"
#include "worker/data/tokenizer_pipeline.h"
#include "worker/data/utf8.h"

namespace titan::data {
namespace {

using nlohmann::json;

absl::StatusOr<json> read_json(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened; is the folder a tokenizer's?"));
  std::ostringstream text;
  text << in.rdbuf();
  try {
    json parsed = json::parse(text.str());
    if (!parsed.is_object()) return bad(absl::StrCat(path, ": holds no JSON object"));
    return parsed;
  } catch (const json::exception& error) {
    return bad(absl::StrCat(path, ": not valid JSON: ", error.what()));
  }
}

// Vocabulary, merges and added tokens, whose ids have to fit together.
class FileReader {
 public:
  absl::Status model(const json& root) {
    const json* model = member(root, "model");
    if (model == nullptr || !model->is_object()) return bad("has no \"model\" object");
    // Files of old versions leave the type out.
    if (const std::string type = text_of(*model, "type"); !type.empty() && type != "BPE") {
      return bad(absl::StrCat("model.type is \"", type, "\"; only \"BPE\" is supported"));
    }
    TITAN_RETURN_IF_ERROR(refuse_options(*model));
    TITAN_RETURN_IF_ERROR(vocabulary(*model));
    TITAN_RETURN_IF_ERROR(merges(*model));
    file_.ignore_merges = flag(*model, "ignore_merges");
    file_.fuse_unknown = flag(*model, "fuse_unk");
    if (const std::string unknown = text_of(*model, "unk_token"); !unknown.empty()) {
      const auto found = ids_.find(unknown);
      if (found == ids_.end()) return bad(absl::StrCat("model.unk_token \"", unknown, "\" is not in model.vocab"));
      file_.unknown_id = found->second;
    }
    return absl::OkStatus();
  }

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

  TokenizerFile& file() { return file_; }
  TokenizerFile take() {
    file_.size = static_cast<int64_t>(ids_.size());
    return std::move(file_);
  }

 private:
  static absl::Status refuse_options(const json& model) {
    if (const json* dropout = member(model, "dropout"); dropout != nullptr && *dropout != 0.0) {
      return bad(
          absl::StrCat("model.dropout is ", dropout->dump(), "; tokens would differ from run to run: set it to null"));
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (const std::string value = text_of(model, key); !value.empty()) {
        return bad(absl::StrCat("model.", key, " is \"", value, "\"; byte-level BPE has none"));
      }
    }
    if (flag(model, "byte_fallback"))
      return bad("model.byte_fallback is true; that is SentencePiece's BPE, not byte-level");
    return absl::OkStatus();
  }

  absl::Status vocabulary(const json& model) {
    const json* vocab = member(model, "vocab");
    if (vocab == nullptr || !vocab->is_object() || vocab->empty())
      return bad("model.vocab is not an object with tokens");
    for (const auto& [token, id] : vocab->items()) {
      TITAN_ASSIGN_OR_RETURN(const int32_t number, checked_id(token, id));
      if (const auto [other, fresh] = contents_.emplace(number, token); !fresh) {
        return bad(absl::StrCat("model.vocab: \"", token, "\" and \"", other->second, "\" share id ", number));
      }
      ids_[token] = number;
      // A token outside the byte alphabet (an added token, listed twice) can only be met as an added token.
      if (std::optional<std::string> bytes = from_byte_alphabet(token)) {
        file_.vocabulary.emplace_back(std::move(*bytes), number);
      }
    }
    return absl::OkStatus();
  }

  // Each merge is "a b" (old files) or ["a", "b"].
  absl::Status merges(const json& model) {
    const json* merges = member(model, "merges");
    if (merges == nullptr || !merges->is_array()) return bad("model.merges is not an array");
    file_.merges.reserve(merges->size());
    for (size_t i = 0; i < merges->size(); ++i) {
      const json& merge = (*merges)[i];
      std::string left, right;
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
          left = text.substr(0, space);
          right = text.substr(space + 1);
        }
      }
      const auto left_bytes = from_byte_alphabet(left), right_bytes = from_byte_alphabet(right);
      if (left.empty() || right.empty() || !left_bytes || !right_bytes) {
        return bad(absl::StrCat("model.merges[", i, "]: ", merge.dump(), " is not a pair of byte-level tokens"));
      }
      file_.merges.emplace_back(*left_bytes, *right_bytes);
    }
    return absl::OkStatus();
  }

  absl::Status add_token(const json& token, const std::string& content, int64_t id) {
    if (flag(token, "single_word")) {
      return bad(absl::StrCat("added token \"", content, "\": single_word is not supported"));
    }
    TITAN_ASSIGN_OR_RETURN(const int32_t number, checked_id(content, id));
    const auto known = ids_.find(content);
    const auto other = contents_.find(number);
    if ((known != ids_.end() && known->second != number) || (other != contents_.end() && other->second != content)) {
      return bad(absl::StrCat("added token \"", content, "\" with id ", number, ": id ", number, " is ",
                              other == contents_.end() ? "free" : absl::StrCat("\"", other->second, "\""),
                              " in model.vocab, whose own id of this token is ",
                              known == ids_.end() ? "missing" : absl::StrCat(known->second)));
    }
    ids_[content] = number;
    contents_[number] = content;
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
    const auto known = ids_.find(content);
    json token = description.is_object() ? description : json::object();
    token["special"] = true;
    if (!token.contains("normalized")) token["normalized"] = false;
    const int64_t id = known != ids_.end() ? known->second : next_id();
    TITAN_RETURN_IF_ERROR(add_token(token, content, id));
    return static_cast<int32_t>(id);
  }

  int64_t next_id() const {
    int64_t next = 0;
    for (const auto& [id, content] : contents_) next = std::max<int64_t>(next, id + 1);
    return next;
  }

  TokenizerFile file_;
  absl::flat_hash_map<std::string, int32_t> ids_;       // Of vocabulary and added tokens, as the file spells them.
  absl::flat_hash_map<int32_t, std::string> contents_;  // And back.
};

}  // namespace

absl::StatusOr<TokenizerFile> read_tokenizer_file(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/tokenizer.json"),
                    config_path = absl::StrCat(folder, "/tokenizer_config.json");
  TITAN_ASSIGN_OR_RETURN(const json root, read_json(path));
  FileReader reader;
  try {
    TokenizerFile& file = reader.file();
    for (const absl::Status& status : {reader.model(root), reader.added_tokens(root), read_pipeline(root, file)}) {
      if (!status.ok()) return annotate(status, path);
    }
    if (std::ifstream(config_path)) {
      TITAN_ASSIGN_OR_RETURN(const json config, read_json(config_path));
      if (absl::Status status = reader.config(config); !status.ok()) return annotate(status, config_path);
    }
  } catch (const json::exception& error) {  // A value of another type than the format's.
    return bad(absl::StrCat(path, ": ", error.what()));
  }
  return reader.take();
}

}  // namespace titan::data
