#pragma once

// Finds the blocks of a row's queries and keys between which attention is computed. Every mask that a model has
// (documents, fixed chunks, sliding window, causality) reduces to spans of positions, inside which attention is causal
// and possibly windowed, or sees every key. So rows are cut into their spans, and no mask is stored for them.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace titan::nn {

// Consecutive positions of a row. The segments of one rank follow one another in its tensors.
struct Segment {
  int64_t position = 0;
  int64_t length = 0;
};

// Segments, ascending, of each rank that has a share of a row.
using RowShares = std::vector<std::vector<Segment>>;

// Query i of a block sees its keys i + first to i + last, inclusive.
struct Band {
  int64_t first = 0;
  int64_t last = 0;

  // Whether some query of a block does not see its first key, or its last key.
  bool cuts_before(int64_t queries) const { return queries - 1 + first > 0; }
  bool cuts_after(int64_t keys) const { return last < keys - 1; }
};

inline constexpr int64_t kAllRows = -1;

// A block of queries and one of keys. Each query sees at least one of the keys, and each key is seen.
struct BlockPair {
  int64_t row = kAllRows;  // Row of the batch.
  int64_t query = 0, queries = 0;
  int64_t key = 0, keys = 0;
  Band band;

  bool masked() const { return band.cuts_before(queries) || band.cuts_after(keys); }
};

// First positions of the spans, ascending from 0: one list for all rows of the batch, or one per row.
struct Spans {
  std::vector<std::vector<int64_t>> starts;
  int64_t seq_len = 0;

  bool same_in_all_rows() const { return starts.size() == 1; }
};

// Cuts rows of seq_len positions where the document changes (documents: int64 [B, seq_len]; undefined or meta: one
// document) and at every multiple of `chunk` (0: none). Reads the documents, which should be in CPU memory. Throws if
// their shape differs or while a graph is captured.
Spans spans_of(const at::Tensor& documents, int64_t chunk, int64_t seq_len);

// Returns all pairs of blocks in which a query sees a key: itself, or an earlier key of its span, within the last
// `window` positions (0: any); with `causal` false any key of its span, and the window must be 0. Offsets are those in
// the rank's tensors. If both sides are the same single segment, every query is in exactly one pair.
std::vector<BlockPair> visible_pairs(const Spans& spans, int64_t window, const std::vector<Segment>& queries,
                                     const std::vector<Segment>& keys, bool causal = true);

// Cuts a pair into pairs of at most `queries` queries each, with only the keys that they see.
std::vector<BlockPair> cut_queries(const BlockPair& pair, int64_t queries);

// Returns int64 [B, seq_len]: the document of each token (MicrobatchContext::documents), counted from 0 in each row of
// `tokens`, int64 [B, seq_len]. A document ends with eos_id, inclusive (torchtitan's block-causal mask). Rows must be
// whole: under context parallelism, call this before a rank takes its share.
at::Tensor number_documents(const at::Tensor& tokens, int64_t eos_id);

}  // namespace titan::nn
