#include "worker/rank/data/tokenizer/pipeline_tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status/status.h"
#include "worker/rank/data/tokenizer/added_tokens.h"
#include "worker/rank/data/tokenizer/bpe.h"
#include "worker/rank/data/tokenizer/byte_tokens.h"
#include "worker/rank/data/tokenizer/split_pattern.h"
#include "worker/rank/data/tokenizer/unigram.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {
namespace {

constexpr const char* kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
constexpr double kUnknownPenalty = 10;  // A character without a token scores this much less than the worst token.

absl::StatusOr<std::vector<AddedToken>> with_normalized(const TokenizerFile& file, bool normalized) {
  std::vector<AddedToken> chosen;
  for (AddedToken token : file.added_tokens) {
    if (token.normalized != normalized) continue;
    if (normalized) {
      TITAN_ASSIGN_OR_RETURN(token.content, file.normalizer.apply(token.content));
    }
    chosen.push_back(std::move(token));
  }
  return chosen;
}

bool holds(const std::vector<int32_t>& tokens, std::optional<int32_t> token) {
  return token.has_value() && std::find(tokens.begin(), tokens.end(), *token) != tokens.end();
}

struct Parts {
  std::unique_ptr<WordModel> model;
  std::vector<std::unique_ptr<SplitPattern>> splits;
  std::unique_ptr<SplitPattern> gpt2;  // Null unless ByteLevel splits by itself.
  std::vector<AddedToken> original_tokens, normalized_tokens;
};

// Cuts added tokens out of the text, normalizes the rest, splits it into words and encodes each word with the model.
class PipelineTokenizer final : public Tokenizer {
 public:
  PipelineTokenizer(const TokenizerFile& file, Parts parts)
      : parts_(std::move(parts)),
        original_tokens_(parts_.original_tokens),
        normalized_tokens_(parts_.normalized_tokens),
        normalizer_(file.normalizer),
        byte_level_(file.byte_level),
        byte_fallback_(file.byte_fallback),
        end_of_word_suffix_(file.end_of_word_suffix),
        add_prefix_space_(file.add_prefix_space),
        metaspace_(file.metaspace),
        decoder_(file.decoder),
        size_(file.size),
        bos_id_(file.bos_id),
        eos_id_(file.eos_id),
        own_prefix_(file.prefix),
        prefix_(file.prefix),
        suffix_(file.suffix) {
    // torchtitan adds BOS and EOS unless the post-processor already does.
    std::vector<int32_t> around = prefix_;
    around.insert(around.end(), suffix_.begin(), suffix_.end());
    if (bos_id_ && !holds(around, bos_id_)) prefix_.insert(prefix_.begin(), *bos_id_);
    if (eos_id_ && !holds(around, eos_id_)) suffix_.push_back(*eos_id_);
    for (const auto& [text, id] : file.vocabulary) remember(id, text);
    for (const AddedToken& token : file.added_tokens) remember(token.id, token.content);
  }

  absl::Status encode(std::string_view text, std::vector<int32_t>& tokens) override {
    if (!is_utf8(text)) return absl::InvalidArgumentError("text is not UTF-8");
    const auto add = [&](int32_t id) { tokens.push_back(id); };
    const auto original = [&](std::string_view part) -> absl::Status {
      bool at_start = part.data() == text.data();
      std::string normalized;
      if (!normalizer_.empty()) {
        bool from_start = true;
        TITAN_ASSIGN_OR_RETURN(normalized, normalizer_.apply(part, &from_start));
        at_start = at_start && from_start;
        part = normalized;
      }
      const auto plain = [&](std::string_view piece) {
        return encode_pieces(0, piece, at_start && piece.data() == part.data(), tokens);
      };
      return normalized_tokens_.split(part, plain, add);
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
    std::vector<std::string> known;
    std::string text;
    for (int32_t token : tokens) {
      if (token < 0 || token >= static_cast<int32_t>(spellings_.size()) || !known_[token]) continue;
      byte_level_ ? void(text += spellings_[token]) : known.push_back(spellings_[token]);
    }
    if (!end_of_word_suffix_.empty()) return without_suffixes(text);
    return byte_level_ ? text : decoder_.decode(std::move(known));
  }

  std::string spelling(int32_t token) const override {
    return token < 0 || token >= static_cast<int32_t>(spellings_.size()) ? "" : spellings_[token];
  }

  std::string bytes(int32_t token) const override {
    std::string spelled = spelling(token);
    if (!end_of_word_suffix_.empty() && spelled.ends_with(end_of_word_suffix_)) {
      spelled.resize(spelled.size() - end_of_word_suffix_.size());
    }
    if (byte_level_) return spelled;
    if (const auto byte = byte_fallback_ ? byte_of_token(spelled) : std::nullopt)
      return std::string(1, static_cast<char>(*byte));
    return absl::StrReplaceAll(spelled, {{metaspace_ ? metaspace_->mark : kSpaceMark, " "}});
  }

  int64_t vocab_size() const override { return size_; }
  int32_t max_id() const override { return static_cast<int32_t>(spellings_.size()) - 1; }
  std::vector<int32_t> prefix() const override { return own_prefix_; }
  std::optional<int32_t> bos_id() const override { return bos_id_; }
  std::optional<int32_t> eos_id() const override { return eos_id_; }

 private:
  // Applies split step `step` and all later ones, each to the pieces of the previous one, and encodes the words.
  absl::Status encode_pieces(size_t step, std::string_view text, bool at_start, std::vector<int32_t>& tokens) {
    if (step < parts_.splits.size()) {
      return parts_.splits[step]->split(text, [&](std::string_view piece) {
        return encode_pieces(step + 1, piece, at_start && piece.data() == text.data(), tokens);
      });
    }
    const auto word = [&](std::string_view text) {
      parts_.model->encode(text, tokens);
      return absl::OkStatus();
    };
    if (byte_level_) return encode_bytes(text, word);
    return metaspace_ ? metaspace_->cut(text, at_start, word) : word(text);
  }

  template <typename Word>
  absl::Status encode_bytes(std::string_view piece, const Word& word) {
    std::string with_space;
    if (add_prefix_space_ && piece.front() != ' ') {
      with_space = absl::StrCat(" ", absl::string_view(piece.data(), piece.size()));
      piece = with_space;
    }
    return parts_.gpt2 == nullptr ? word(piece) : parts_.gpt2->split(piece, word);
  }

  // Each suffix becomes the space between two words.
  std::string without_suffixes(const std::string& text) const {
    const std::string spaced = absl::StrReplaceAll(text, {{end_of_word_suffix_, " "}});
    return std::string(absl::StripAsciiWhitespace(spaced));
  }

  void remember(int32_t id, const std::string& text) {
    if (static_cast<size_t>(id) >= spellings_.size()) {
      spellings_.resize(id + 1);
      known_.resize(id + 1);
    }
    spellings_[id] = text;
    known_[id] = true;
  }

  Parts parts_;
  AddedTokenMatcher original_tokens_, normalized_tokens_;
  Normalizer normalizer_;
  bool byte_level_, byte_fallback_;
  std::string end_of_word_suffix_;
  bool add_prefix_space_;
  std::optional<Metaspace> metaspace_;
  TokenDecoder decoder_;
  int64_t size_;
  std::optional<int32_t> bos_id_, eos_id_;
  std::vector<int32_t> own_prefix_;       // Tokens that the file puts before a text.
  std::vector<int32_t> prefix_, suffix_;  // Tokens that torchtitan puts around a document.
  std::vector<std::string> spellings_;    // Indexed by id.
  std::vector<bool> known_;
};

std::unique_ptr<WordModel> make_unigram(const TokenizerFile& file) {
  std::vector<UnigramPiece> pieces;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < file.vocabulary.size(); ++i) {
    pieces.push_back({file.vocabulary[i].first, file.vocabulary[i].second, file.scores[i]});
    least = std::min(least, file.scores[i]);
  }
  UnigramOptions options;
  options.unknown_id = file.unknown_id.value_or(0);
  options.unknown_score = least - kUnknownPenalty;
  options.byte_tokens.fill(-1);
  if (file.byte_fallback) {
    options.byte_tokens =
        byte_token_ids(absl::flat_hash_map<std::string, int32_t>(file.vocabulary.begin(), file.vocabulary.end()));
  }
  return std::make_unique<Unigram>(pieces, options);
}

absl::StatusOr<std::unique_ptr<WordModel>> make_model(const TokenizerFile& file) {
  if (file.model == TokenizerFile::Model::kUnigram) return make_unigram(file);
  const BpeOptions options = {.characters = !file.byte_level,
                              .byte_fallback = file.byte_fallback,
                              .ignore_merges = file.ignore_merges,
                              .fuse_unknown = file.fuse_unknown,
                              .unknown_id = file.unknown_id.value_or(-1),
                              .end_of_word_suffix = file.end_of_word_suffix,
                              .whole_words = file.whole_words};
  if (file.merges_by_rank) {
    std::vector<RankedToken> ranked;
    for (const auto& [text, id] : file.vocabulary) ranked.push_back({text, id, id});
    return std::make_unique<Bpe>(Bpe::from_ranks(ranked, options));
  }
  TITAN_ASSIGN_OR_RETURN(Bpe bpe, Bpe::create(file.vocabulary, file.merges, options));
  return std::make_unique<Bpe>(std::move(bpe));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> make_pipeline_tokenizer(const TokenizerFile& file) {
  Parts parts;
  TITAN_ASSIGN_OR_RETURN(parts.model, make_model(file));
  TITAN_ASSIGN_OR_RETURN(parts.original_tokens, with_normalized(file, false));
  TITAN_ASSIGN_OR_RETURN(parts.normalized_tokens, with_normalized(file, true));
  for (const SplitStep& step : file.splits) {
    TITAN_ASSIGN_OR_RETURN(auto split, SplitPattern::compile(step.pattern, step.options));
    parts.splits.push_back(std::move(split));
  }
  if (file.gpt2_split) {
    TITAN_ASSIGN_OR_RETURN(parts.gpt2, SplitPattern::compile(kGpt2Pattern, {}));
  }
  return std::make_unique<PipelineTokenizer>(file, std::move(parts));
}

}  // namespace titan::data
