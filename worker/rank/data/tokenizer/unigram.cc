#include "worker/rank/data/tokenizer/unigram.h"

#include <algorithm>
#include <cmath>

#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {
namespace {

constexpr size_t kBytes = 256;

// Keys [first, last) share their first `depth` bytes, which lead to `node`.
struct Range {
  size_t first, last, depth;
  int32_t node;
};

}  // namespace

DoubleArray::DoubleArray(Keys keys) : nodes_(2 * kBytes) {
  std::stable_sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Range> ranges = {{0, keys.size(), 0, kRoot}};
  std::vector<unsigned char> bytes;
  std::vector<size_t> starts;
  while (!ranges.empty()) {
    Range range = ranges.back();
    ranges.pop_back();
    while (range.first < range.last && keys[range.first].first.size() == range.depth) {
      nodes_[range.node].value = keys[range.first++].second;
    }
    bytes.clear();
    starts.clear();
    for (size_t i = range.first; i < range.last; ++i) {
      const auto byte = static_cast<unsigned char>(keys[i].first[range.depth]);
      if (!bytes.empty() && bytes.back() == byte) continue;
      bytes.push_back(byte);
      starts.push_back(i);
    }
    if (bytes.empty()) continue;
    place_children(bytes, range.node);
    starts.push_back(range.last);
    for (size_t i = 0; i < bytes.size(); ++i) {
      ranges.push_back({starts[i], starts[i + 1], range.depth + 1, nodes_[range.node].base + bytes[i]});
    }
  }
}

bool DoubleArray::fits(const std::vector<unsigned char>& bytes, size_t base) {
  if (base + kBytes > nodes_.size()) nodes_.resize(std::max(2 * nodes_.size(), base + kBytes));
  return std::all_of(bytes.begin(), bytes.end(), [&](unsigned char b) { return nodes_[base + b].parent == kNone; });
}

void DoubleArray::place_children(const std::vector<unsigned char>& bytes, int32_t node) {
  size_t at = std::max<size_t>(first_free_, bytes[0] + 1), looked_at = 0, taken = 0;
  for (;; ++at) {
    if (at >= nodes_.size()) nodes_.resize(2 * nodes_.size());
    ++looked_at;
    if (nodes_[at].parent != kNone) {
      ++taken;
    } else if (fits(bytes, at - bytes[0])) {
      break;
    }
  }
  // Later searches skip a region that is nearly full, so that long vocabularies are placed quickly.
  if (taken * 20 >= looked_at * 19) first_free_ = std::max(first_free_, at);
  const size_t base = at - bytes[0];
  nodes_[node].base = static_cast<int32_t>(base);
  for (const unsigned char byte : bytes) nodes_[base + byte].parent = node;
  if (base + 2 * kBytes > nodes_.size()) nodes_.resize(base + 2 * kBytes);
}

int32_t DoubleArray::find(std::string_view key) const {
  int32_t node = kRoot;
  for (const char c : key) {
    node = child(node, static_cast<unsigned char>(c));
    if (node == kNone) return kNone;
  }
  return value(node);
}

namespace {

std::vector<std::pair<std::string, int32_t>> by_place(const std::vector<UnigramPiece>& pieces) {
  std::vector<std::pair<std::string, int32_t>> keys;
  keys.reserve(pieces.size());
  for (const UnigramPiece& piece : pieces) {
    if (!piece.text.empty()) keys.emplace_back(piece.text, static_cast<int32_t>(&piece - pieces.data()));
  }
  return keys;
}

// Above this magnitude SentencePiece restarts the sums at the next piece, so that a float still separates scores.
constexpr float kMaxSum = 100000;

template <typename Ending>
void rebase_scores(std::vector<Ending>& endings, size_t begin, size_t reached) {
  const auto till_here = endings[begin].score;
  for (size_t i = begin; i <= reached; ++i) {
    if (i == begin || endings[i].begin >= 0) endings[i].score -= till_here;
  }
}

}  // namespace

Unigram::Unigram(const std::vector<UnigramPiece>& pieces, const UnigramOptions& options)
    : options_(options), trie_(by_place(pieces)) {
  for (const UnigramPiece& piece : pieces) scores_.push_back({piece.id, piece.score});
}

void Unigram::encode(std::string_view word, std::vector<int32_t>& tokens) {
  if (options_.single_precision) {
    find_best_path<float>(word, single_);
    return emit(word, tokens);
  }
  const absl::string_view key(word.data(), word.size());
  const bool cacheable = word.size() <= kCachedWord;
  if (cacheable) {
    if (const auto found = cache_.find(key); found != cache_.end()) {
      tokens.insert(tokens.end(), found->second.begin(), found->second.end());
      return;
    }
  }
  const size_t before = tokens.size();
  find_best_path<double>(word, double_);
  emit(word, tokens);
  if (!cacheable) return;
  if (cache_.size() >= kCacheEntries) cache_.clear();
  cache_.emplace(key, std::vector<int32_t>(tokens.begin() + static_cast<ptrdiff_t>(before), tokens.end()));
}

// Viterbi: endings[i] is the best way to reach byte i. Sums are kept and compared as `Sum`; the first of equal ones
// stays. This matches both packages exactly, since rounding decides between paths of equal probability.
template <typename Sum>
void Unigram::find_best_path(std::string_view text, std::vector<Ending<Sum>>& endings) {
  endings.assign(text.size() + 1, {});
  size_t reached = 0;
  const auto offer = [&](size_t begin, size_t end, Sum score, int32_t piece) {
    Ending<Sum>& ending = endings[end];
    reached = std::max(reached, end);
    if (ending.begin >= 0 && !(score > ending.score)) return;
    ending = {score, static_cast<int32_t>(begin), piece};
  };
  for (size_t begin = 0; begin < text.size();) {
    const size_t next = std::min<size_t>(begin + decode_utf8(text, begin).length, text.size());
    if (options_.single_precision && std::abs(endings[begin].score) > kMaxSum) rebase_scores(endings, begin, reached);
    const Sum till_here = endings[begin].score;
    bool single = false;
    int32_t node = DoubleArray::kRoot;
    for (size_t end = begin; end < text.size();) {
      node = trie_.child(node, static_cast<unsigned char>(text[end++]));
      if (node == DoubleArray::kNone) break;
      const int32_t place = trie_.value(node);
      if (place == DoubleArray::kNone) continue;
      const Score& piece = scores_[place];
      offer(begin, end, static_cast<Sum>(piece.score) + till_here, piece.id);
      single = single || end == next;
    }
    if (!single) offer(begin, next, static_cast<Sum>(options_.unknown_score) + till_here, options_.unknown_id);
    begin = next;
  }
  parts_.clear();
  for (size_t end = text.size(); end > 0;) {
    const Ending<Sum>& ending = endings[end];
    parts_.push_back({static_cast<uint32_t>(ending.begin), static_cast<uint32_t>(end), ending.piece});
    end = static_cast<size_t>(ending.begin);
  }
}

void Unigram::emit(std::string_view text, std::vector<int32_t>& tokens) const {
  for (auto part = parts_.rbegin(); part != parts_.rend();) {
    if (part->id != options_.unknown_id) {
      tokens.push_back(part++->id);
      continue;
    }
    const size_t begin = part->begin;
    size_t end = begin;
    for (; part != parts_.rend() && part->id == options_.unknown_id; ++part) end = part->end;
    emit_unknown(text.substr(begin, end - begin), tokens);
  }
}

void Unigram::emit_unknown(std::string_view text, std::vector<int32_t>& tokens) const {
  // In a tokenizer.json the name of the unknown token is itself a piece.
  if (const int32_t place = trie_.find(text); place != DoubleArray::kNone) return tokens.push_back(scores_[place].id);
  const auto token = [&](char byte) { return options_.byte_tokens[static_cast<unsigned char>(byte)]; };
  if (!std::all_of(text.begin(), text.end(), [&](char byte) { return token(byte) >= 0; })) {
    return tokens.push_back(options_.unknown_id);
  }
  for (const char byte : text) tokens.push_back(token(byte));
}

}  // namespace titan::data
