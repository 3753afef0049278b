#include "worker/rank/data/tokenizer/tokenizer_vocabulary.h"

#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/tokenizer/byte_alphabet.h"
#include "worker/rank/data/tokenizer/tokenizer_json.h"

namespace titan::data {
namespace {

using nlohmann::json;

absl::Status refuse_options(const json& model, bool byte_level) {
  if (const json* dropout = member(model, "dropout"); dropout != nullptr && *dropout != 0.0) {
    return bad(
        absl::StrCat("model.dropout is ", dropout->dump(), "; tokens would differ from run to run: set it to null"));
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const std::string value = text_of(model, key); !value.empty()) {
      return bad(absl::StrCat("model.", key, " is \"", value, "\", which is not supported"));
    }
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
    if (vocab->size() > static_cast<size_t>(kLargestId)) return bad("model.vocab has more than 4194303 tokens");
    for (size_t id = 0; id < vocab->size(); ++id) TITAN_RETURN_IF_ERROR(scored_token((*vocab)[id], id));
    file_.byte_fallback = flag(model, "byte_fallback");
    const json* unknown = member(model, "unk_id");
    if (unknown == nullptr || !unknown->is_number_unsigned() || unknown->get<size_t>() >= vocab->size()) {
      return bad("model.unk_id is no token's number; without one unknown characters could not be told");
    }
    file_.unknown_id = unknown->get<int32_t>();
    return absl::OkStatus();
  }

 private:
  // ["the", -3.5], whose place is its number.
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
      // A token outside the byte alphabet (an added token, listed twice) can only be met as an added token.
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

  // What the file's spelling stands for.
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
  // Files of old versions leave the type out.
  if (type.empty() || type == "BPE") return reader.byte_pairs(*model);
  return bad(absl::StrCat("model.type is \"", type, "\"; only \"BPE\" and \"Unigram\" are supported"));
}

}  // namespace titan::data
