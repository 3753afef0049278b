#include "worker/rank/nn/attention_pairs.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "worker/rank/device/device_graphs.h"

namespace titan::nn {
namespace {

// Returns the number of queries per block under a window: small, so that a block reads few keys before the windows of
// its queries.
int64_t window_block(int64_t window) { return std::clamp<int64_t>(window / 2, 64, 512); }

std::vector<int64_t> starts_of_row(const int64_t* documents, int64_t chunk, int64_t seq_len) {
  std::vector<int64_t> starts{0};
  if (documents == nullptr) {
    for (int64_t position = chunk; chunk > 0 && position < seq_len; position += chunk) starts.push_back(position);
    return starts;
  }
  for (int64_t position = 1; position < seq_len; ++position) {
    const bool new_document = documents[position] != documents[position - 1];
    const bool new_chunk = chunk > 0 && position % chunk == 0;
    if (new_document || new_chunk) starts.push_back(position);
  }
  return starts;
}

// Merges `next` into `one` if they are adjacent and neither is masked. Returns whether it did.
bool join(BlockPair& one, const BlockPair& next) {
  if (one.masked() || next.masked() || one.row != next.row) return false;
  if (one.query == next.query && one.queries == next.queries && one.key + one.keys == next.key) {
    one.keys += next.keys;
  } else if (one.key == next.key && one.keys == next.keys && one.query + one.queries == next.query) {
    one.queries += next.queries;
  } else {
    return false;
  }
  one.band = {.first = -one.queries, .last = one.keys};
  return true;
}

// A segment of queries and a segment of keys, with their offsets in the rank's tensors.
class SegmentPair {
 public:
  SegmentPair(Segment queries, int64_t query_offset, Segment keys, int64_t key_offset, int64_t window)
      : queries_(queries),
        keys_(keys),
        query_shift_(query_offset - queries.position),
        key_shift_(key_offset - keys.position),
        window_(window) {}

  // Adds the part inside the span [begin, end) of a row.
  void add_span(int64_t row, int64_t begin, int64_t end, std::vector<BlockPair>& pairs) const {
    const int64_t key_begin = std::max(begin, keys_.position);
    const int64_t query_begin = std::max(key_begin, queries_.position);
    int64_t query_end = std::min(end, queries_.position + queries_.length);
    const int64_t key_end = std::min({end, query_end, keys_.position + keys_.length});
    if (window_ > 0) query_end = std::min(query_end, key_end + window_ - 1);
    if (query_begin >= query_end || key_begin >= key_end) return;
    const bool windowed = window_ > 0 && query_end - key_begin > window_;
    const int64_t step = windowed ? window_block(window_) : query_end - query_begin;
    for (int64_t query = query_begin; query < query_end; query += step) {
      const int64_t last = std::min(query + step, query_end);
      const int64_t first_key = windowed ? std::max(key_begin, query - window_ + 1) : key_begin;
      add(row, query, last, first_key, std::min(key_end, last), windowed, pairs);
    }
  }

  // Adds the part inside the span [begin, end) of a row in which every query sees every key.
  void add_whole_span(int64_t row, int64_t begin, int64_t end, std::vector<BlockPair>& pairs) const {
    const int64_t query = std::max(begin, queries_.position), key = std::max(begin, keys_.position);
    const int64_t queries = std::min(end, queries_.position + queries_.length) - query;
    const int64_t keys = std::min(end, keys_.position + keys_.length) - key;
    if (queries <= 0 || keys <= 0) return;
    const BlockPair pair{.row = row,
                         .query = query + query_shift_,
                         .queries = queries,
                         .key = key + key_shift_,
                         .keys = keys,
                         .band = {.first = -queries, .last = keys}};
    if (pairs.empty() || !join(pairs.back(), pair)) pairs.push_back(pair);
  }

 private:
  void add(int64_t row, int64_t query, int64_t query_end, int64_t key, int64_t key_end, bool windowed,
           std::vector<BlockPair>& pairs) const {
    const int64_t back = windowed ? window_ - 1 : query_end - key;  // Positions that a query looks back.
    const BlockPair pair{.row = row,
                         .query = query + query_shift_,
                         .queries = query_end - query,
                         .key = key + key_shift_,
                         .keys = key_end - key,
                         .band = {.first = query - key - back, .last = query - key}};
    if (pairs.empty() || !join(pairs.back(), pair)) pairs.push_back(pair);
  }

  const Segment queries_, keys_;
  const int64_t query_shift_, key_shift_;
  const int64_t window_;
};

}  // namespace

Spans spans_of(const at::Tensor& documents, int64_t chunk, int64_t seq_len) {
  Spans spans{.seq_len = seq_len};
  if (!documents.defined() || documents.is_meta()) {  // Tokens of a dry run have no values.
    spans.starts.push_back(starts_of_row(nullptr, chunk, seq_len));
    return spans;
  }
  device::check_not_capturing("where documents end");
  const at::Tensor numbers = documents.to(at::kCPU, at::kLong).contiguous();
  TORCH_CHECK(numbers.dim() == 2 && numbers.size(1) == seq_len, "attention: documents have the shape ",
              documents.sizes(), ", need [rows, ", seq_len, "]");
  for (int64_t row = 0; row < numbers.size(0); ++row) {
    spans.starts.push_back(starts_of_row(numbers.const_data_ptr<int64_t>() + row * seq_len, chunk, seq_len));
  }
  const bool alike = std::all_of(spans.starts.begin(), spans.starts.end(),
                                 [&](const auto& starts) { return starts == spans.starts.front(); });
  if (alike) spans.starts.resize(1);
  return spans;
}

std::vector<BlockPair> visible_pairs(const Spans& spans, int64_t window, const std::vector<Segment>& queries,
                                     const std::vector<Segment>& keys, bool causal) {
  TORCH_CHECK(causal || window == 0, "attention: a window of ", window, " positions needs a causal mask");
  std::vector<BlockPair> pairs;
  for (size_t row = 0; row < spans.starts.size(); ++row) {
    const std::vector<int64_t>& starts = spans.starts[row];
    int64_t query_offset = 0;
    for (const Segment& query : queries) {
      int64_t key_offset = 0;
      for (const Segment& key : keys) {
        const SegmentPair both(query, query_offset, key, key_offset, window);
        // Visits the spans from the one that holds the first query to the one that holds the last.
        auto span = std::upper_bound(starts.begin(), starts.end(), query.position) - 1;
        for (; span != starts.end() && *span < query.position + query.length; ++span) {
          const int64_t end = span + 1 == starts.end() ? spans.seq_len : *(span + 1);
          const int64_t in_row = spans.same_in_all_rows() ? kAllRows : static_cast<int64_t>(row);
          causal ? both.add_span(in_row, *span, end, pairs) : both.add_whole_span(in_row, *span, end, pairs);
        }
        key_offset += key.length;
      }
      query_offset += query.length;
    }
  }
  return pairs;
}

std::vector<BlockPair> cut_queries(const BlockPair& pair, int64_t queries) {
  std::vector<BlockPair> pieces;
  for (int64_t first = 0; first < pair.queries; first += queries) {
    const int64_t count = std::min(queries, pair.queries - first);
    const int64_t begin = std::max<int64_t>(0, first + pair.band.first);
    const int64_t end = std::min(pair.keys, first + count + pair.band.last);
    const int64_t shift = first - begin;
    pieces.push_back({.row = pair.row,
                      .query = pair.query + first,
                      .queries = count,
                      .key = pair.key + begin,
                      .keys = end - begin,
                      .band = {.first = pair.band.first + shift, .last = pair.band.last + shift}});
  }
  return pieces;
}

at::Tensor number_documents(const at::Tensor& tokens, int64_t eos_id) {
  const at::Tensor ends = tokens.eq(eos_id).to(at::kLong);
  return ends.cumsum(1) - ends;  // Number of ends before a token.
}

}  // namespace titan::nn
