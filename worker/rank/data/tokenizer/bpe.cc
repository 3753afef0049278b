#include "worker/rank/data/tokenizer/bpe.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "worker/rank/data/tokenizer/byte_tokens.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {
namespace {

constexpr size_t kShortWord = 64;  // In symbols: up to this length a scan is faster than a heap.
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Returns where the word that begins at `begin` ends: before the first mark that follows another character.
size_t next_word(std::string_view text, size_t begin) {
  size_t at = begin;
  while (text.substr(at, std::size(kSpaceMark) - 1) == kSpaceMark) at += std::size(kSpaceMark) - 1;
  return std::min(text.find(kSpaceMark, at), text.size());
}

}  // namespace

Bpe::Bpe(const absl::flat_hash_map<std::string, int32_t>& ids, const BpeOptions& options) : options_(options) {
  if (options.characters) {
    byte_tokens_ = byte_token_ids(ids);
    for (const auto& [token, id] : ids) {
      if (token.empty()) continue;
      const Decoded first = decode_utf8(token, 0);
      if (first.length != token.size()) continue;
      if (first.code_point >= character_tokens_.size()) character_tokens_.resize(first.code_point + 1, -1);
      character_tokens_[first.code_point] = id;
    }
  } else {
    const auto id_of = [&](const std::string& token) {
      const auto found = ids.find(token);
      return found == ids.end() ? -1 : found->second;
    };
    for (int byte = 0; byte < 256; ++byte) {
      const std::string token(1, static_cast<char>(byte));
      byte_tokens_[byte] = id_of(token);
      last_byte_tokens_[byte] = id_of(token + options.end_of_word_suffix);
    }
  }
  words_.insert(options.whole_words.begin(), options.whole_words.end());
}

absl::StatusOr<Bpe> Bpe::create(const std::vector<std::pair<std::string, int32_t>>& vocabulary,
                                const std::vector<std::pair<std::string, std::string>>& merges,
                                const BpeOptions& options) {
  absl::flat_hash_map<std::string, int32_t> ids(vocabulary.begin(), vocabulary.end());
  Bpe bpe(ids, options);
  bpe.split_at_space_marks_ = options.characters && !options.ignore_merges && ids.contains(kSpaceMark);
  bpe.merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const std::string parts[] = {left, right, left + right};
    int32_t tokens[3];
    for (int i = 0; i < 3; ++i) {
      const auto found = ids.find(parts[i]);
      if (found == ids.end()) {
        return absl::InvalidArgumentError(absl::StrCat("merge ", rank, " (\"", absl::CEscape(left), "\" + \"",
                                                       absl::CEscape(right), "\"): \"", absl::CEscape(parts[i]),
                                                       "\" is not in the vocabulary"));
      }
      tokens[i] = found->second;
    }
    bpe.merges_[pair_key(tokens[0], tokens[1])] = {static_cast<int32_t>(rank), tokens[2]};
    if (next_word(parts[2], 0) != parts[2].size()) bpe.split_at_space_marks_ = false;
  }
  if (options.ignore_merges) bpe.words_ = std::move(ids);
  return bpe;
}

Bpe Bpe::from_ranks(const std::vector<RankedToken>& vocabulary, const BpeOptions& options) {
  absl::flat_hash_map<std::string, int32_t> ids;
  for (const RankedToken& token : vocabulary) ids.emplace(token.text, token.id);
  Bpe bpe(ids, options);
  bpe.split_at_space_marks_ = options.characters && !options.ignore_merges && ids.contains(kSpaceMark);
  for (const RankedToken& token : vocabulary) {
    if (token.rank < 0) continue;
    const absl::string_view bytes(token.text);
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const auto left = ids.find(bytes.substr(0, cut)), right = ids.find(bytes.substr(cut));
      if (left == ids.end() || right == ids.end()) continue;
      bpe.merges_[pair_key(left->second, right->second)] = {token.rank, token.id};
    }
    if (next_word(token.text, 0) != token.text.size()) bpe.split_at_space_marks_ = false;
  }
  if (options.ignore_merges) bpe.words_ = std::move(ids);
  return bpe;
}

const Bpe::Merge* Bpe::find_merge(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& tokens) {
  if (!split_at_space_marks_) return encode_word(word, tokens);
  for (size_t begin = 0; begin < word.size();) {
    const size_t end = next_word(word, begin);
    encode_word(word.substr(begin, end - begin), tokens);
    begin = end;
  }
}

void Bpe::encode_word(std::string_view word, std::vector<int32_t>& tokens) {
  const absl::string_view key(word.data(), word.size());
  const bool cacheable = word.size() <= kCachedWord;
  if (cacheable) {
    if (const auto found = cache_.find(key); found != cache_.end()) {
      const auto begin = cached_tokens_.begin() + found->second.offset;
      tokens.insert(tokens.end(), begin, begin + found->second.count);
      return;
    }
  }
  symbols_.clear();
  const auto whole = words_.find(key);
  if (whole != words_.end()) {
    symbols_.push_back(whole->second);
  } else {
    options_.characters ? characters_to_symbols(word, symbols_) : bytes_to_symbols(word, symbols_);
    symbols_.size() <= kShortWord ? merge_short(symbols_) : merge_long(symbols_);
  }
  tokens.insert(tokens.end(), symbols_.begin(), symbols_.end());
  if (!cacheable) return;
  if (cache_.size() >= kCacheEntries) {
    cache_.clear();
    cached_tokens_.clear();
  }
  cache_.emplace(key, Cached{static_cast<uint32_t>(cached_tokens_.size()), static_cast<uint32_t>(symbols_.size())});
  cached_tokens_.insert(cached_tokens_.end(), symbols_.begin(), symbols_.end());
}

void Bpe::bytes_to_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  bool after_unknown = false;
  for (size_t i = 0; i < word.size(); ++i) {
    const auto& tokens = i + 1 == word.size() ? last_byte_tokens_ : byte_tokens_;
    const int32_t token = tokens[static_cast<unsigned char>(word[i])];
    if (token >= 0) {
      symbols.push_back(token);
    } else if (options_.unknown_id >= 0 && !(after_unknown && options_.fuse_unknown)) {
      symbols.push_back(options_.unknown_id);
    }
    after_unknown = token < 0;
  }
}

// Adds an unknown character's token just before that of the next known character, as the `tokenizers` package does. So
// tokens of bytes in between come first.
void Bpe::characters_to_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  bool unknown = false;
  for (size_t at = 0; at < word.size();) {
    const Decoded next = decode_utf8(word, at);
    const std::string_view character = word.substr(at, next.length);
    at += next.length;
    const int32_t token = character_token(next.code_point);
    if (token >= 0) {
      if (unknown) symbols.push_back(options_.unknown_id);
      unknown = false;
      symbols.push_back(token);
    } else if (!add_byte_tokens(character, symbols) && options_.unknown_id >= 0) {
      if (unknown && !options_.fuse_unknown) symbols.push_back(options_.unknown_id);
      unknown = true;
    }
  }
  if (unknown) symbols.push_back(options_.unknown_id);
}

int32_t Bpe::character_token(uint32_t code_point) const {
  return code_point < character_tokens_.size() ? character_tokens_[code_point] : -1;
}

bool Bpe::knows_characters(std::string_view text) const {
  for (size_t at = 0; at < text.size();) {
    const Decoded next = decode_utf8(text, at);
    if (character_token(next.code_point) < 0) return false;
    at += next.length;
  }
  return true;
}

bool Bpe::add_byte_tokens(std::string_view character, std::vector<int32_t>& symbols) const {
  if (!options_.byte_fallback) return false;
  const auto token = [&](char byte) { return byte_tokens_[static_cast<unsigned char>(byte)]; };
  if (!std::all_of(character.begin(), character.end(), [&](char byte) { return token(byte) >= 0; })) return false;
  for (char byte : character) symbols.push_back(token(byte));
  return true;
}

void Bpe::merge_short(std::vector<int32_t>& symbols) const {
  size_t count = symbols.size();
  if (count < 2) return;
  Merge next[kShortWord];  // next[i]: the result of merging symbols i and i + 1.
  const auto look = [&](size_t i) {
    const Merge* merge = find_merge(symbols[i], symbols[i + 1]);
    next[i] = merge == nullptr ? Merge{kNoRank, -1} : *merge;
  };
  for (size_t i = 0; i + 1 < count; ++i) look(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (next[i].rank < next[best].rank) best = i;
    }
    if (next[best].rank == kNoRank) break;
    symbols[best] = next[best].token;
    std::copy(symbols.begin() + best + 2, symbols.begin() + count, symbols.begin() + best + 1);
    std::copy(next + best + 1, next + count - 1, next + best);
    --count;
    if (best > 0) look(best - 1);
    if (best + 1 < count) look(best);
  }
  symbols.resize(count);
}

void Bpe::merge_long(std::vector<int32_t>& symbols) const {
  const int32_t count = static_cast<int32_t>(symbols.size());
  struct Link {
    int32_t previous, next;
  };
  std::vector<Link> links(count);
  for (int32_t i = 0; i < count; ++i) links[i] = {i - 1, i + 1 < count ? i + 1 : -1};
  struct Candidate {
    int32_t rank, position, left, right, token;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto push = [&](int32_t position) {
    if (position < 0 || links[position].next < 0) return;
    const int32_t left = symbols[position], right = symbols[links[position].next];
    if (const Merge* merge = find_merge(left, right)) queue.push({merge->rank, position, left, right, merge->token});
  };
  for (int32_t i = 0; i < count; ++i) push(i);
  constexpr int32_t kGone = -1;
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    const int32_t next = links[top.position].next;
    // The candidate is stale if a neighbor has merged since.
    if (symbols[top.position] != top.left || next < 0 || symbols[next] != top.right) continue;
    symbols[top.position] = top.token;
    symbols[next] = kGone;
    links[top.position].next = links[next].next;
    if (links[next].next >= 0) links[links[next].next].previous = top.position;
    push(links[top.position].previous);
    push(top.position);
  }
  symbols.erase(std::remove(symbols.begin(), symbols.end(), kGone), symbols.end());
}

}  // namespace titan::data
