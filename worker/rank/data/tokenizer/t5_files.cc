#include "worker/rank/data/tokenizer/t5_files.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status/status.h"
#include "common/io/tokenizer_files/chat_template_text.h"
#include "common/io/tokenizer_files/sentencepiece.h"
#include "worker/rank/data/tokenizer/added_tokens.h"
#include "worker/rank/data/tokenizer/byte_tokens.h"
#include "worker/rank/data/tokenizer/folder_tokens.h"
#include "worker/rank/data/tokenizer/sentencepiece_tokenizer.h"
#include "worker/rank/data/tokenizer/tokenizer_json.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {
namespace {

using nlohmann::json;
using tokenizer_files::SentencePieceModel;

constexpr int64_t kMaxSentinels = 100000;

struct T5Options {
  bool legacy = true;
  bool add_prefix_space = true;  // Not with `legacy`: the text begins with a space.
  std::vector<AddedToken> added;
  std::string unknown;
  int32_t eos = 0;
};

class T5Tokenizer final : public Tokenizer {
 public:
  T5Tokenizer(T5Options options, std::unique_ptr<Tokenizer> pieces)
      : options_(std::move(options)), pieces_(std::move(pieces)), matcher_(options_.added) {
    for (const AddedToken& token : options_.added) added_[token.id] = token.content;
    if (!options_.legacy) {
      std::vector<int32_t> tokens;
      if (pieces_->encode(options_.unknown, tokens).ok()) unknown_length_ = tokens.size();
    }
  }

  absl::Status encode(std::string_view text, std::vector<int32_t>& tokens) override {
    if (!is_utf8(text)) return absl::InvalidArgumentError("text is not UTF-8");
    if (options_.legacy || text.empty()) return encode_parts(text, tokens);
    // The class marks the start of the text itself, and drops a mark that a special token follows.
    const std::string plain = absl::StrReplaceAll(absl::string_view(text.data(), text.size()), {{kSpaceMark, " "}});
    std::vector<int32_t> all;
    size_t first_added = 0;
    TITAN_RETURN_IF_ERROR(
        encode_parts(absl::StrCat(options_.add_prefix_space ? kSpaceMark : "", plain), all, &first_added));
    const bool lone = first_added == 1 && spelling(all[0]) == kSpaceMark;
    tokens.insert(tokens.end(), all.begin() + (lone ? 1 : 0), all.end());
    return absl::OkStatus();
  }

  absl::Status encode_document(std::string_view text, std::vector<int32_t>& tokens) override {
    const size_t before = tokens.size();
    if (absl::Status status = encode(text, tokens); !status.ok()) {
      tokens.resize(before);
      return status;
    }
    tokens.push_back(options_.eos);
    return absl::OkStatus();
  }

  std::string decode(const std::vector<int32_t>& tokens) const override {
    std::string text;
    std::vector<int32_t> between;
    const auto finish = [&] { text += pieces_->decode(std::exchange(between, {})); };
    for (const int32_t token : tokens) {
      const auto found = added_.find(token);
      if (found == added_.end()) {
        between.push_back(token);
        continue;
      }
      finish();
      text += found->second;
    }
    finish();
    return text;
  }

  std::string spelling(int32_t token) const override {
    const auto found = added_.find(token);
    return found != added_.end() ? found->second : pieces_->spelling(token);
  }
  std::string bytes(int32_t token) const override {
    const auto found = added_.find(token);
    return found != added_.end() ? found->second : pieces_->bytes(token);
  }
  int64_t vocab_size() const override {
    return pieces_->vocab_size() + std::distance(added_.upper_bound(pieces_->max_id()), added_.end());
  }
  int32_t max_id() const override {
    return added_.empty() ? pieces_->max_id() : std::max(pieces_->max_id(), added_.rbegin()->first);
  }
  std::vector<int32_t> prefix() const override { return {}; }
  std::optional<int32_t> bos_id() const override { return std::nullopt; }
  std::optional<int32_t> eos_id() const override { return options_.eos; }

 private:
  // Sets `first_added` to the index in `tokens`, which is empty, of the first added token.
  absl::Status encode_parts(std::string_view text, std::vector<int32_t>& tokens, size_t* first_added = nullptr) {
    bool found = false;
    return matcher_.split(
        text, [&](std::string_view part) { return encode_pieces(part, tokens); },
        [&](int32_t id) {
          if (first_added != nullptr && !std::exchange(found, true)) *first_added = tokens.size();
          tokens.push_back(id);
        });
  }

  // Without `legacy` the model adds no space mark, and would drop one at the start; the class prevents this with a word
  // before it, whose pieces it takes away again.
  absl::Status encode_pieces(std::string_view part, std::vector<int32_t>& tokens) {
    const bool marked = part.starts_with(kSpaceMark) || part.starts_with(' ');
    if (options_.legacy || !marked) return pieces_->encode(part, tokens);
    std::vector<int32_t> all;
    TITAN_RETURN_IF_ERROR(pieces_->encode(absl::StrCat(options_.unknown, std::string(part)), all));
    const size_t taken = all.size() >= unknown_length_ ? unknown_length_ : 0;
    tokens.insert(tokens.end(), all.begin() + static_cast<ptrdiff_t>(taken), all.end());
    return absl::OkStatus();
  }

  T5Options options_;
  std::unique_ptr<Tokenizer> pieces_;
  AddedTokenMatcher matcher_;
  std::map<int32_t, std::string> added_;
  size_t unknown_length_ = 0;  // Pieces of the unknown token's text.
};

// Adds <extra_id_0>.. where the files do not describe them.
absl::Status add_sentinels(const json& config, const std::string& where, int32_t pieces,
                           std::vector<AddedToken>& tokens) {
  const json* extra = member(config, "extra_ids");
  const int64_t count = extra == nullptr ? 100 : extra->is_number_integer() ? extra->get<int64_t>() : -1;
  if (count < 0 || count > kMaxSentinels) {
    return bad(absl::StrCat(where, ": extra_ids is ", extra->dump(), "; it is a number of tokens"));
  }
  for (int64_t i = 0; i < count; ++i) {
    AddedToken sentinel;
    sentinel.content = absl::StrCat("<extra_id_", i, ">");
    sentinel.id = pieces - 1 + static_cast<int32_t>(count - i);
    sentinel.special = sentinel.lstrip = sentinel.rstrip = true;
    const auto known = std::find_if(tokens.begin(), tokens.end(),
                                    [&](const AddedToken& token) { return token.content == sentinel.content; });
    if (known == tokens.end()) {
      tokens.push_back(std::move(sentinel));
    } else if (known->id < 0) {  // Only listed as special.
      *known = std::move(sentinel);
    }
  }
  return absl::OkStatus();
}

// Checks that no token has the id of a piece with another text, or of another token.
absl::Status check_ids(const SentencePieceModel& model, const std::string& where,
                       const std::vector<AddedToken>& tokens) {
  std::map<int32_t, std::string> texts;
  for (const AddedToken& token : tokens) {
    const auto at = static_cast<size_t>(token.id);
    const auto [other, fresh] = texts.emplace(token.id, token.content);
    if (fresh && (at >= model.pieces.size() || model.pieces[at].text == token.content)) continue;
    return bad(absl::StrCat(where, ": token \"", token.content, "\" has the id ", token.id, ", which is that of \"",
                            fresh ? model.pieces[at].text : other->second, "\""));
  }
  return absl::OkStatus();
}

absl::Status place(const json& config, const std::string& where, const SentencePieceModel& model,
                   std::vector<AddedToken>& tokens) {
  const auto pieces = static_cast<int32_t>(model.pieces.size());
  TITAN_RETURN_IF_ERROR(add_sentinels(config, where, pieces, tokens));
  const auto id_of = [&](const std::string& text) -> std::optional<int32_t> {
    for (int32_t id = 0; id < pieces; ++id) {
      if (model.pieces[static_cast<size_t>(id)].text == text) return id;
    }
    return std::nullopt;
  };
  int32_t size = pieces;
  for (const AddedToken& token : tokens) size += token.id >= pieces ? 1 : 0;
  place_tokens(id_of, size, tokens);
  return check_ids(model, where, tokens);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> load_t5_tokenizer(const std::string& folder, const std::string& pieces) {
  const std::string where = absl::StrCat(folder, "/tokenizer_config.json");
  const std::string path = absl::StrCat(folder, "/spiece.model");
  TITAN_ASSIGN_OR_RETURN(const json config, tokenizer_files::read_tokenizer_config(folder));
  const std::string kind = text_of(config, "tokenizer_class");
  if (!kind.empty() && !absl::StartsWith(kind, "T5Tokenizer")) {
    return bad(absl::StrCat(where, ": tokenizer_class is \"", kind,
                            "\"; a spiece.model is read for T5Tokenizer only. Convert it to a tokenizer.json"));
  }
  auto model = tokenizer_files::parse_sentencepiece(pieces);
  if (!model.ok()) return annotate(model.status(), path);
  TITAN_ASSIGN_OR_RETURN(
      FolderTokens tokens,
      read_folder_tokens(folder, config, {{"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}}));
  if (!tokens.roles.contains("eos_token")) return bad(absl::StrCat(where, ": eos_token is null"));
  TITAN_RETURN_IF_ERROR(place(config, where, *model, tokens.tokens));
  T5Options options{.legacy = flag(config, "legacy", true), .add_prefix_space = flag(config, "add_prefix_space", true)};
  options.unknown = tokens.roles.contains("unk_token") ? tokens.roles["unk_token"] : "";
  for (const AddedToken& token : tokens.tokens) {
    if (token.content == tokens.roles["eos_token"]) options.eos = token.id;
  }
  options.added = std::move(tokens.tokens);
  if (!options.legacy) model->add_dummy_prefix = false;
  auto made = make_sentencepiece_tokenizer(*std::move(model));
  if (!made.ok()) return annotate(made.status(), path);
  return std::make_unique<T5Tokenizer>(std::move(options), *std::move(made));
}

}  // namespace titan::data
