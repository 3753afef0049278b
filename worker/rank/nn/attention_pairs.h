#pragma once

// Which blocks of queries and keys of a row meet at all, and how. Every mask that a model has (documents, fixed chunks,
// sliding window, causality) comes down to spans of positions, inside which attention is causal and perhaps windowed:
// so rows are cut at their spans, and no mask has to be stored for them.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace titan::nn {

// Consecutive positions of a row. The segments of one rank lie one after another in its tensors.
struct Segment {
  int64_t position = 0;
  int64_t length = 0;
};

// The segments of each rank that a row is dealt to, ascending.
using RowShares = std::vector<std::vector<Segment>>;

// Query i of a block sees its keys i + first to i + last.
struct Band {
  int64_t first = 0;
  int64_t last = 0;

  // Whether it hides a key of a block, before or after those that are seen.
  bool cuts_before(int64_t queries) const { return queries - 1 + first > 0; }
  bool cuts_after(int64_t keys) const { return last < keys - 1; }
};

inline constexpr int64_t kAllRows = -1;

// Each of its queries sees at least one of its keys, and each key is seen.
struct BlockPair {
  int64_t row = kAllRows;  // Of the batch.
  int64_t query = 0, queries = 0;
  int64_t key = 0, keys = 0;
  Band band;

  bool masked() const { return band.cuts_before(queries) || band.cuts_after(keys); }
};

// First positions of the spans, ascending from 0: one list for all rows of the batch, or one for each.
struct Spans {
  std::vector<std::vector<int64_t>> starts;
  int64_t seq_len = 0;

  bool same_in_all_rows() const { return starts.size() == 1; }
};

// Cuts rows of seq_len positions where the document changes (documents: int64 [B, seq_len], undefined: one document)
// and at every multiple of `chunk` (0: none). Reads the documents: they should live in the CPU's memory.
Spans spans_of(const at::Tensor& documents, int64_t chunk, int64_t seq_len);

// All pairs of blocks in which a query sees a key: itself, and what comes before it in its span, not farther back than
// `window` positions (0: any). Offsets are those in the rank's tensors. With the same single segment on both sides
// every query is in exactly one pair.
std::vector<BlockPair> visible_pairs(const Spans& spans, int64_t window, const std::vector<Segment>& queries,
                                     const std::vector<Segment>& keys);

// The number of the document that each token belongs to (MicrobatchContext::documents), counted from 0 in each row of
// tokens [B, seq_len]: a document ends with eos_id, inclusive (torchtitan's block-causal mask). The rows must be whole:
// under context parallelism, before a rank takes its share.
at::Tensor number_documents(const at::Tensor& tokens, int64_t eos_id);

}  // namespace titan::nn
