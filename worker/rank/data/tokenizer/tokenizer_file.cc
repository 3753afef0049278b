#include "worker/rank/data/tokenizer/tokenizer_file.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/tokenizer_files/chat_template_text.h"
#include "worker/rank/data/tokenizer/byte_tokens.h"
#include "worker/rank/data/tokenizer/tokenizer_json.h"
#include "worker/rank/data/tokenizer/tokenizer_pipeline.h"

namespace titan::data {
namespace {

using nlohmann::json;

// Reads the parts of a tokenizer.json, and checks that the ids of added tokens agree with the model's.
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

  // Reads BOS and EOS, and special tokens that only the config knows (they get the next free ids, as in torchtitan).
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

  // Checks that the post-processor's tokens exist.
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
  TITAN_ASSIGN_OR_RETURN(const json config, tokenizer_files::read_tokenizer_config(folder));
  return read_tokenizer_json(root, path, config, absl::StrCat(folder, "/tokenizer_config.json"));
}

absl::StatusOr<TokenizerFile> read_tokenizer_json(const json& root, const std::string& path, const json& config,
                                                  const std::string& config_path) {
  FileReader reader;
  try {
    TokenizerFile& file = reader.file();
    // The pipeline comes first, because it decides how the vocabulary is spelled.
    TITAN_RETURN_IF_ERROR(annotate(read_pipeline(root, file), path));
    TITAN_RETURN_IF_ERROR(annotate(reader.model(root), path));
    TITAN_RETURN_IF_ERROR(annotate(reader.added_tokens(root), path));
    TITAN_RETURN_IF_ERROR(annotate(reader.config(config), config_path));
    TITAN_RETURN_IF_ERROR(annotate(reader.check_template(), path));
  } catch (const json::exception& error) {  // A value has a type that the format does not allow.
    return bad(absl::StrCat(path, ": ", error.what()));
  }
  return reader.take();
}

namespace {

absl::Status refuse_options(const json& model, bool byte_level) {
  if (const json* dropout = member(model, "dropout"); dropout != nullptr && *dropout != 0.0) {
    return bad(
        absl::StrCat("model.dropout is ", dropout->dump(), "; tokens would differ from run to run: set it to null"));
  }
  if (const std::string value = text_of(model, "continuing_subword_prefix"); !value.empty()) {
    return bad(absl::StrCat("model.continuing_subword_prefix is \"", value, "\", which is not supported"));
  }
  if (const std::string value = text_of(model, "end_of_word_suffix"); !byte_level && !value.empty()) {
    return bad(absl::StrCat("model.end_of_word_suffix is \"", value, "\", which is only supported with the ",
                            "pre_tokenizer \"ByteLevel\""));
  }
  if (byte_level && flag(model, "byte_fallback"))
    return bad("model.byte_fallback is true; that is SentencePiece's BPE, not byte-level");
  return absl::OkStatus();
}

class ModelReader {
 public:
  ModelReader(TokenizerFile& file, TokenIds& ids) : file_(file), ids_(ids) {}

  absl::Status byte_pairs(const json& model) {
    TITAN_RETURN_IF_ERROR(refuse_options(model, file_.byte_level));
    TITAN_RETURN_IF_ERROR(vocabulary(model));
    TITAN_RETURN_IF_ERROR(merges(model));
    file_.byte_fallback = flag(model, "byte_fallback");
    file_.ignore_merges = flag(model, "ignore_merges");
    file_.fuse_unknown = flag(model, "fuse_unk");
    file_.end_of_word_suffix = text_of(model, "end_of_word_suffix");
    if (const std::string unknown = text_of(model, "unk_token"); !unknown.empty()) {
      const auto found = ids_.by_token.find(unknown);
      if (found == ids_.by_token.end())
        return bad(absl::StrCat("model.unk_token \"", unknown, "\" is not in model.vocab"));
      file_.unknown_id = found->second;
    }
    return absl::OkStatus();
  }

  absl::Status unigram(const json& model) {
    file_.model = TokenizerFile::Model::kUnigram;
    if (file_.byte_level) return bad("pre_tokenizer \"ByteLevel\" with a model of type Unigram is not supported");
    const json* vocab = member(model, "vocab");
    if (vocab == nullptr || !vocab->is_array() || vocab->empty()) return bad("model.vocab is not an array with tokens");
    if (vocab->size() > static_cast<size_t>(kMaxId)) return bad("model.vocab has more than 4194303 tokens");
    for (size_t id = 0; id < vocab->size(); ++id) TITAN_RETURN_IF_ERROR(scored_token((*vocab)[id], id));
    file_.byte_fallback = flag(model, "byte_fallback");
    const json* unknown = member(model, "unk_id");
    if (unknown == nullptr || !unknown->is_number_unsigned() || unknown->get<size_t>() >= vocab->size()) {
      return bad("model.unk_id is not the number of a token; unknown characters need one");
    }
    file_.unknown_id = unknown->get<int32_t>();
    return absl::OkStatus();
  }

 private:
  // Reads ["the", -3.5]; the entry's index is the token's id.
  absl::Status scored_token(const json& entry, size_t id) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number() ||
        !std::isfinite(entry[1].get<double>())) {
      return bad(absl::StrCat("model.vocab[", id, "]: ", entry.dump(), " is not a token and its score"));
    }
    const std::string token = entry[0].get<std::string>();
    ids_.by_token[token] = static_cast<int32_t>(id);
    ids_.by_id[static_cast<int32_t>(id)] = token;
    file_.vocabulary.emplace_back(token, static_cast<int32_t>(id));
    file_.scores.push_back(entry[1].get<double>());
    return absl::OkStatus();
  }

  absl::Status vocabulary(const json& model) {
    const json* vocab = member(model, "vocab");
    if (vocab == nullptr || !vocab->is_object() || vocab->empty())
      return bad("model.vocab is not an object with tokens");
    for (const auto& [token, id] : vocab->items()) {
      TITAN_ASSIGN_OR_RETURN(const int32_t number, checked_id(token, id));
      if (const auto [other, fresh] = ids_.by_id.emplace(number, token); !fresh) {
        return bad(absl::StrCat("model.vocab: \"", token, "\" and \"", other->second, "\" share id ", number));
      }
      ids_.by_token[token] = number;
      // A token outside the byte alphabet (an added token, listed twice) can only occur as an added token.
      if (std::optional<std::string> bytes = plain(token)) file_.vocabulary.emplace_back(std::move(*bytes), number);
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
      const auto left_bytes = plain(left), right_bytes = plain(right);
      if (left.empty() || right.empty() || !left_bytes || !right_bytes) {
        return bad(absl::StrCat("model.merges[", i, "]: ", merge.dump(), " is not a pair of ",
                                file_.byte_level ? "byte-level tokens" : "tokens"));
      }
      file_.merges.emplace_back(*left_bytes, *right_bytes);
    }
    return absl::OkStatus();
  }

  // Returns the text that the file's spelling stands for.
  std::optional<std::string> plain(const std::string& spelling) const {
    return file_.byte_level ? from_byte_alphabet(spelling) : spelling;
  }

  TokenizerFile& file_;
  TokenIds& ids_;
};

}  // namespace

absl::Status read_model(const json& root, TokenizerFile& file, TokenIds& ids) {
  const json* model = member(root, "model");
  if (model == nullptr || !model->is_object()) return bad("has no \"model\" object");
  const std::string type = text_of(*model, "type");
  ModelReader reader(file, ids);
  if (type == "Unigram") return reader.unigram(*model);
  // Old files have no type.
  if (type.empty() || type == "BPE") return reader.byte_pairs(*model);
  return bad(absl::StrCat("model.type is \"", type, "\"; only \"BPE\" and \"Unigram\" are supported"));
}

}  // namespace titan::data
