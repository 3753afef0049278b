#include "worker/data/bpe.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace titan::data {
namespace {

constexpr size_t kShortWord = 64;           // Symbols; a scan beats a heap below.
constexpr size_t kCachedWord = 48;          // Bytes of the longest word worth remembering.
constexpr size_t kCacheEntries = 1u << 17;  // Then the cache starts again.
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

absl::StatusOr<Bpe> Bpe::create(const std::vector<std::pair<std::string, int32_t>>& vocabulary,
                                const std::vector<std::pair<std::string, std::string>>& merges,
                                const BpeOptions& options) {
  absl::flat_hash_map<std::string, int32_t> ids(vocabulary.begin(), vocabulary.end());
  Bpe bpe;
  bpe.options_ = options;
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(std::string(1, static_cast<char>(byte)));
    bpe.byte_tokens_[byte] = found == ids.end() ? -1 : found->second;
  }
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
  }
  if (options.ignore_merges) bpe.words_ = std::move(ids);
  return bpe;
}

const Bpe::Merge* Bpe::find_merge(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& tokens) {
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
  const auto whole = options_.ignore_merges ? words_.find(key) : words_.end();
  if (whole != words_.end()) {
    symbols_.push_back(whole->second);
  } else {
    to_symbols(word, symbols_);
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

void Bpe::to_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  bool after_unknown = false;
  for (char c : word) {
    const int32_t token = byte_tokens_[static_cast<unsigned char>(c)];
    if (token >= 0) {
      symbols.push_back(token);
    } else if (options_.unknown_id >= 0 && !(after_unknown && options_.fuse_unknown)) {
      symbols.push_back(options_.unknown_id);
    }
    after_unknown = token < 0;
  }
}

void Bpe::merge_short(std::vector<int32_t>& symbols) const {
  size_t count = symbols.size();
  if (count < 2) return;
  Merge next[kShortWord];  // next[i]: what symbols i and i + 1 would become.
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
    // Stale when a neighbour was merged meanwhile.
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
