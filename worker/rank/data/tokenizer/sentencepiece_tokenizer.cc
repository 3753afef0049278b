#include "worker/rank/data/tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status/status.h"
#include "worker/rank/data/tokenizer/bpe.h"
#include "worker/rank/data/tokenizer/byte_tokens.h"
#include "worker/rank/data/tokenizer/unigram.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {

SentencePieceNormalizer::SentencePieceNormalizer(const tokenizer_files::SentencePieceModel& model, Charsmap rules,
                                                 const AddedTokenMatcher* fixed)
    : rules_(std::move(rules)),
      fixed_(fixed),
      space_(model.escape_whitespaces ? kSpaceMark : " "),
      add_dummy_prefix_(model.add_dummy_prefix),
      remove_extra_(model.remove_extra_whitespaces) {}

SentencePieceNormalizer::Prefix SentencePieceNormalizer::prefix(std::string_view text) const {
  if (const size_t length = fixed_->length_at(text, 0); length > 0) return {text.substr(0, length), length};
  if (const Charsmap::Match rule = rules_.longest(text); rule.length > 0) return {rule.replacement, rule.length};
  const size_t length = decode_utf8(text, 0).length;
  return {text.substr(0, length), length};
}

std::string SentencePieceNormalizer::apply(std::string_view text) const {
  if (remove_extra_) {
    while (!text.empty()) {
      const Prefix first = prefix(text);
      if (first.text != " ") break;
      text.remove_prefix(first.length);
    }
  }
  std::string out;
  if (text.empty()) return out;
  out.reserve(text.size() + text.size() / 2);
  if (add_dummy_prefix_) out += space_;
  bool after_space = remove_extra_;
  while (!text.empty()) {
    Prefix next = prefix(text);
    text.remove_prefix(next.length);
    while (after_space && next.text.substr(0, 1) == " ") next.text.remove_prefix(1);
    if (next.text.empty()) continue;
    append(next.text, out);
    after_space = remove_extra_ && next.text.back() == ' ';
  }
  while (remove_extra_ && out.ends_with(space_)) out.resize(out.size() - space_.size());
  return out;
}

void SentencePieceNormalizer::append(std::string_view text, std::string& out) const {
  for (const char c : text) {
    if (c == ' ') {
      out += space_;
    } else {
      out += c;
    }
  }
}

namespace {

using tokenizer_files::SentencePiece;
using tokenizer_files::SentencePieceModel;
using Type = SentencePiece::Type;

constexpr float kUnknownPiecePenalty = 10;  // A character without a piece scores this much less than the worst piece.

std::vector<AddedToken> user_pieces(const SentencePieceModel& model) {
  std::vector<AddedToken> pieces;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type != Type::kUserDefined) continue;
    pieces.push_back({.id = static_cast<int32_t>(id), .content = model.pieces[id].text});
  }
  return pieces;
}

// Pieces merge by score, the highest first; among equal scores the leftmost merges first.
absl::StatusOr<std::unique_ptr<WordModel>> make_pairs(const SentencePieceModel& model) {
  std::map<float, int32_t, std::greater<>> ranks;
  for (const SentencePiece& piece : model.pieces) ranks[piece.score] = 0;
  int32_t next = 0;
  for (auto& [score, rank] : ranks) rank = next++;
  std::vector<RankedToken> tokens;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    if (piece.type == Type::kUnused) {
      return absl::InvalidArgumentError(
          absl::StrCat("piece \"", piece.text, "\" is UNUSED, which is not supported in a BPE model"));
    }
    if (piece.type == Type::kUnknown || piece.type == Type::kControl || piece.type == Type::kUserDefined) continue;
    tokens.push_back({piece.text, static_cast<int32_t>(id), piece.type == Type::kByte ? -1 : ranks.at(piece.score)});
  }
  Bpe pairs = Bpe::from_ranks(
      tokens,
      {.characters = true, .byte_fallback = model.byte_fallback, .fuse_unknown = true, .unknown_id = model.unknown_id});
  for (const RankedToken& token : tokens) {
    // SentencePiece also merges text that is not a piece itself, which Bpe cannot.
    if (token.rank >= 0 && !pairs.knows_characters(token.text)) {
      return absl::InvalidArgumentError(
          absl::StrCat("piece \"", token.text, "\" has a character without a piece, which is not supported"));
    }
  }
  return std::make_unique<Bpe>(std::move(pairs));
}

// SentencePiece ignores the file's score of a user-defined piece: a path through the fewest and longest of them always
// wins.
float user_score(const SentencePiece& piece) {
  return static_cast<float>(0.1 * (static_cast<double>(piece.text.size()) - 1));
}

std::unique_ptr<WordModel> make_unigrams(const SentencePieceModel& model) {
  std::vector<UnigramPiece> pieces;
  UnigramOptions options;
  options.single_precision = true;
  options.unknown_id = model.unknown_id;
  options.byte_tokens.fill(-1);
  float least = std::numeric_limits<float>::max();
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    const auto number = static_cast<int32_t>(id);
    if (piece.type == Type::kByte) options.byte_tokens[*byte_of_token(piece.text)] = number;
    if (piece.type == Type::kUserDefined) pieces.push_back({piece.text, number, user_score(piece)});
    if (piece.type != Type::kNormal) continue;
    least = std::min(least, piece.score);
    pieces.push_back({piece.text, number, piece.score});
  }
  options.unknown_score = least - kUnknownPiecePenalty;
  return std::make_unique<Unigram>(pieces, options);
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(SentencePieceModel model, std::unique_ptr<WordModel> words, Charsmap rules)
      : model_(std::move(model)),
        words_(std::move(words)),
        user_pieces_(user_pieces(model_)),
        normalizer_(model_, std::move(rules), &user_pieces_) {}
  SentencePieceTokenizer(const SentencePieceTokenizer&) = delete;
  SentencePieceTokenizer& operator=(const SentencePieceTokenizer&) = delete;

  absl::Status encode(std::string_view text, std::vector<int32_t>& tokens) override {
    if (!is_utf8(text)) return absl::InvalidArgumentError("text is not UTF-8");
    const std::string normalized = normalizer_.apply(text);
    if (model_.kind == SentencePieceModel::Kind::kUnigram) {  // User-defined pieces compete by score.
      words_->encode(normalized, tokens);
      return absl::OkStatus();
    }
    const auto words = [&](std::string_view part) {
      words_->encode(part, tokens);
      return absl::OkStatus();
    };
    return user_pieces_.split(normalized, words, [&](int32_t id) { tokens.push_back(id); });
  }

  absl::Status encode_document(std::string_view text, std::vector<int32_t>& tokens) override {
    const size_t before = tokens.size();
    if (bos_id()) tokens.push_back(*bos_id());
    if (absl::Status status = encode(text, tokens); !status.ok()) {
      tokens.resize(before);
      return status;
    }
    if (eos_id()) tokens.push_back(*eos_id());
    return absl::OkStatus();
  }

  std::string decode(const std::vector<int32_t>& tokens) const override {
    std::string text, pending;
    bool at_start = true;
    for (const int32_t token : tokens) {
      if (!is_piece(token)) continue;
      const SentencePiece& piece = model_.pieces[token];
      if (piece.type == Type::kByte) {
        pending += static_cast<char>(*byte_of_token(piece.text));
        continue;
      }
      append_bytes(pending, text);
      at_start = at_start && text.empty();
      if (piece.type == Type::kControl) continue;
      if (piece.type == Type::kUnknown) {
        text += model_.unknown_surface;
        continue;
      }
      std::string_view spelled = piece.text;
      const bool marked = spelled.substr(0, std::size(kSpaceMark) - 1) == kSpaceMark;
      if (at_start && marked && (model_.add_dummy_prefix || model_.remove_extra_whitespaces)) {
        spelled.remove_prefix(std::size(kSpaceMark) - 1);
        at_start = model_.remove_extra_whitespaces;
      }
      text += absl::StrReplaceAll(absl::string_view(spelled.data(), spelled.size()), {{kSpaceMark, " "}});
    }
    append_bytes(pending, text);
    return text;
  }

  std::string spelling(int32_t token) const override { return is_piece(token) ? model_.pieces[token].text : ""; }
  std::string bytes(int32_t token) const override {
    if (!is_piece(token)) return "";
    const SentencePiece& piece = model_.pieces[token];
    if (piece.type == Type::kByte) return std::string(1, static_cast<char>(*byte_of_token(piece.text)));
    return absl::StrReplaceAll(piece.text, {{kSpaceMark, " "}});
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(model_.pieces.size()); }
  int32_t max_id() const override { return static_cast<int32_t>(model_.pieces.size()) - 1; }
  std::vector<int32_t> prefix() const override {
    return bos_id() ? std::vector<int32_t>{*bos_id()} : std::vector<int32_t>{};
  }
  std::optional<int32_t> bos_id() const override { return or_none(model_.bos_id); }
  std::optional<int32_t> eos_id() const override { return or_none(model_.eos_id); }

 private:
  bool is_piece(int32_t token) const { return token >= 0 && token <= max_id(); }
  static std::optional<int32_t> or_none(int32_t id) { return id < 0 ? std::nullopt : std::optional(id); }

  // Appends the characters that the bytes form, and U+FFFD for each byte outside of a character.
  static void append_bytes(std::string& bytes, std::string& text) {
    for (size_t at = 0; at < bytes.size();) {
      size_t length = 1;
      while (length <= 4 && at + length <= bytes.size() && !is_utf8(std::string_view(bytes).substr(at, length)))
        ++length;
      const bool whole = length <= 4 && at + length <= bytes.size();
      whole ? text.append(bytes, at, length) : text.append("\uFFFD");
      at += whole ? length : 1;
    }
    bytes.clear();
  }

  SentencePieceModel model_;
  std::unique_ptr<WordModel> words_;
  AddedTokenMatcher user_pieces_;
  SentencePieceNormalizer normalizer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> make_sentencepiece_tokenizer(SentencePieceModel model) {
  TITAN_ASSIGN_OR_RETURN(Charsmap rules, Charsmap::parse(model.charsmap));
  std::unique_ptr<WordModel> words;
  if (model.kind == SentencePieceModel::Kind::kUnigram) {
    words = make_unigrams(model);
  } else {
    TITAN_ASSIGN_OR_RETURN(words, make_pairs(model));
  }
  return std::make_unique<SentencePieceTokenizer>(std::move(model), std::move(words), std::move(rules));
}

}  // namespace titan::data
