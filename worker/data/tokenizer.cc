#include "worker/data/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "worker/data/added_tokens.h"
#include "worker/data/bpe.h"
#include "worker/data/nfc.h"
#include "worker/data/split_pattern.h"
#include "worker/data/tokenizer_file.h"
#include "worker/data/utf8.h"

namespace titan::data {
namespace {

constexpr const char* kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

std::vector<AddedToken> with_normalized(const std::vector<AddedToken>& tokens, bool normalized, bool nfc) {
  std::vector<AddedToken> chosen;
  for (AddedToken token : tokens) {
    if (token.normalized != normalized) continue;
    if (normalized && nfc) token.content = to_nfc(token.content);
    chosen.push_back(std::move(token));
  }
  return chosen;
}

bool holds(const std::vector<int32_t>& tokens, std::optional<int32_t> token) {
  return token.has_value() && std::find(tokens.begin(), tokens.end(), *token) != tokens.end();
}

class BytePairTokenizer final : public Tokenizer {
 public:
  BytePairTokenizer(const TokenizerFile& file, Bpe bpe, std::vector<std::unique_ptr<SplitPattern>> splits,
                    std::unique_ptr<SplitPattern> gpt2)
      : bpe_(std::move(bpe)),
        splits_(std::move(splits)),
        gpt2_(std::move(gpt2)),
        original_tokens_(with_normalized(file.added_tokens, false, file.nfc)),
        normalized_tokens_(with_normalized(file.added_tokens, true, file.nfc)),
        nfc_(file.nfc),
        add_prefix_space_(file.add_prefix_space),
        size_(file.size),
        bos_id_(file.bos_id),
        eos_id_(file.eos_id),
        prefix_(file.prefix),
        suffix_(file.suffix) {
    // torchtitan adds BOS and EOS unless the post-processor already puts them somewhere.
    std::vector<int32_t> around = prefix_;
    around.insert(around.end(), suffix_.begin(), suffix_.end());
    if (bos_id_ && !holds(around, bos_id_)) prefix_.insert(prefix_.begin(), *bos_id_);
    if (eos_id_ && !holds(around, eos_id_)) suffix_.push_back(*eos_id_);
    for (const auto& [bytes, id] : file.vocabulary) remember(id, bytes);
    for (const AddedToken& token : file.added_tokens) remember(token.id, token.content);
  }

  absl::Status encode(std::string_view text, std::vector<int32_t>& tokens) override {
    if (!is_utf8(text)) return absl::InvalidArgumentError("text is not UTF-8");
    const auto add = [&](int32_t id) { tokens.push_back(id); };
    const auto plain = [&](std::string_view part) { return encode_pieces(0, part, tokens); };
    const auto original = [&](std::string_view part) {
      if (!nfc_) return normalized_tokens_.split(part, plain, add);
      const std::string normalized = to_nfc(part);
      return normalized_tokens_.split(normalized, plain, add);
    };
    return original_tokens_.split(text, original, add);
  }

  absl::Status encode_document(std::string_view text, std::vector<int32_t>& tokens) override {
    const size_t before = tokens.size();
    tokens.insert(tokens.end(), prefix_.begin(), prefix_.end());
    if (absl::Status status = encode(text, tokens); !status.ok()) {
      tokens.resize(before);
      return status;
    }
    tokens.insert(tokens.end(), suffix_.begin(), suffix_.end());
    return absl::OkStatus();
  }

  std::string decode(const std::vector<int32_t>& tokens) const override {
    std::string text;
    for (int32_t token : tokens) {
      if (token >= 0 && token < static_cast<int32_t>(bytes_.size())) text += bytes_[token];
    }
    return text;
  }

  int64_t vocab_size() const override { return size_; }
  int32_t max_id() const override { return static_cast<int32_t>(bytes_.size()) - 1; }
  std::optional<int32_t> bos_id() const override { return bos_id_; }
  std::optional<int32_t> eos_id() const override { return eos_id_; }

 private:
  // Through the split steps from `step` on, each cutting the pieces of the one before.
  absl::Status encode_pieces(size_t step, std::string_view text, std::vector<int32_t>& tokens) {
    if (step == splits_.size()) return encode_bytes(text, tokens);
    return splits_[step]->split(text, [&](std::string_view piece) { return encode_pieces(step + 1, piece, tokens); });
  }

  absl::Status encode_bytes(std::string_view piece, std::vector<int32_t>& tokens) {
    std::string with_space;
    if (add_prefix_space_ && piece.front() != ' ') {
      with_space = absl::StrCat(" ", absl::string_view(piece.data(), piece.size()));
      piece = with_space;
    }
    const auto word = [&](std::string_view text) {
      bpe_.encode(text, tokens);
      return absl::OkStatus();
    };
    return gpt2_ == nullptr ? word(piece) : gpt2_->split(piece, word);
  }

  void remember(int32_t id, const std::string& bytes) {
    if (static_cast<size_t>(id) >= bytes_.size()) bytes_.resize(id + 1);
    bytes_[id] = bytes;
  }

  Bpe bpe_;
  std::vector<std::unique_ptr<SplitPattern>> splits_;
  std::unique_ptr<SplitPattern> gpt2_;  // Null without ByteLevel's own split.
  AddedTokenMatcher original_tokens_, normalized_tokens_;
  bool nfc_, add_prefix_space_;
  int64_t size_;
  std::optional<int32_t> bos_id_, eos_id_;
  std::vector<int32_t> prefix_, suffix_;
  std::vector<std::string> bytes_;  // By id.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(const TokenizerFile file, read_tokenizer_file(folder));
  const std::string path = absl::StrCat(folder, "/tokenizer.json");
  BpeOptions options;
  options.ignore_merges = file.ignore_merges;
  options.fuse_unknown = file.fuse_unknown;
  options.unknown_id = file.unknown_id.value_or(-1);
  absl::StatusOr<Bpe> bpe = Bpe::create(file.vocabulary, file.merges, options);
  if (!bpe.ok()) return annotate(bpe.status(), path);
  std::vector<std::unique_ptr<SplitPattern>> splits;
  for (const SplitStep& step : file.splits) {
    auto split = SplitPattern::compile(step.pattern, step.options);
    if (!split.ok()) return annotate(split.status(), path);
    splits.push_back(*std::move(split));
  }
  std::unique_ptr<SplitPattern> gpt2;
  if (file.gpt2_split) {
    TITAN_ASSIGN_OR_RETURN(gpt2, SplitPattern::compile(kGpt2Pattern, {}));
  }
  return std::make_unique<BytePairTokenizer>(file, *std::move(bpe), std::move(splits), std::move(gpt2));
}

}  // namespace titan::data
