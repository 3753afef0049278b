#include "worker/rank/parallel/context_load_balance.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

namespace titan::parallel {
namespace {

constexpr int64_t kMaxBlocks = 8;  // Limit per share. It bounds the number of parts of a rank's attention.

int64_t chunk_length(int64_t seq_len, int64_t chunks, int ranks) {
  TORCH_CHECK(seq_len % chunks == 0, "context parallel: rows of ", seq_len, " tokens cannot be cut into ", chunks,
              " equal chunks for ", ranks, " ranks; make the sequence length a multiple of ", chunks);
  return seq_len / chunks;
}

int64_t blocks_of(int64_t share) {
  int64_t blocks = std::min(kMaxBlocks, share);
  while (share % blocks != 0) --blocks;
  return blocks;
}

int64_t work_of(const std::vector<nn::Segment>& share, const std::vector<int64_t>& work) {
  int64_t sum = 0;
  for (const nn::Segment& segment : share) {
    const auto begin = work.begin() + segment.position;
    sum = std::accumulate(begin, begin + segment.length, sum);
  }
  return sum;
}

// Returns the blocks in ascending order, adjacent ones joined into one segment.
std::vector<nn::Segment> joined(std::vector<int64_t> blocks, int64_t length) {
  std::sort(blocks.begin(), blocks.end());
  std::vector<nn::Segment> share;
  for (const int64_t block : blocks) {
    const int64_t position = block * length;
    if (!share.empty() && share.back().position + share.back().length == position) {
      share.back().length += length;
    } else {
      share.push_back({position, length});
    }
  }
  return share;
}

nn::RowShares deal_blocks(const std::vector<int64_t>& work, int ranks) {
  const int64_t share = static_cast<int64_t>(work.size()) / ranks;
  const int64_t blocks_per_rank = blocks_of(share), length = share / blocks_per_rank;
  std::vector<int64_t> work_of_block(ranks * blocks_per_rank), order(ranks * blocks_per_rank);
  for (int64_t block = 0; block < ranks * blocks_per_rank; ++block) {
    work_of_block[block] = work_of({{block * length, length}}, work);
  }
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t one, int64_t other) { return work_of_block[one] > work_of_block[other]; });
  std::vector<std::vector<int64_t>> blocks(ranks);
  std::vector<int64_t> load(ranks);
  for (const int64_t block : order) {
    int to = -1;
    for (int rank = 0; rank < ranks; ++rank) {
      const bool has_space = static_cast<int64_t>(blocks[rank].size()) < blocks_per_rank;
      if (has_space && (to < 0 || load[rank] < load[to])) to = rank;
    }
    blocks[to].push_back(block);
    load[to] += work_of_block[block];
  }
  nn::RowShares shares;
  for (std::vector<int64_t>& own : blocks) shares.push_back(joined(std::move(own), length));
  return shares;
}

}  // namespace

std::vector<int64_t> attention_work(const at::Tensor& documents, int64_t rows, int64_t seq_len,
                                    const std::vector<LayersOfMask>& layers) {
  std::vector<int64_t> work(seq_len);
  for (const auto& [mask, count] : layers) {
    const nn::Spans spans = nn::spans_of(mask.documents ? documents : at::Tensor(), mask.chunk, seq_len);
    const int64_t times = spans.same_in_all_rows() ? count * rows : count;
    for (const std::vector<int64_t>& starts : spans.starts) {
      for (size_t span = 0; span < starts.size(); ++span) {
        const int64_t end = span + 1 < starts.size() ? starts[span + 1] : seq_len;
        for (int64_t query = starts[span]; query < end; ++query) {
          const int64_t keys = mask.causal ? query - starts[span] + 1 : end - starts[span];
          work[query] += times * (mask.window > 0 ? std::min(keys, mask.window) : keys);
        }
      }
    }
  }
  return work;
}

int64_t max_work(const nn::RowShares& shares, const std::vector<int64_t>& work) {
  int64_t most = 0;
  for (const std::vector<nn::Segment>& share : shares) most = std::max(most, work_of(share, work));
  return most;
}

nn::RowShares split_contiguous(int64_t seq_len, int ranks) {
  const int64_t length = chunk_length(seq_len, ranks, ranks);
  nn::RowShares shares;
  for (int rank = 0; rank < ranks; ++rank) shares.push_back({{rank * length, length}});
  return shares;
}

nn::RowShares split_head_tail(int64_t seq_len, int ranks) {
  const int64_t chunks = int64_t{2} * ranks, length = chunk_length(seq_len, chunks, ranks);
  nn::RowShares shares;
  for (int rank = 0; rank < ranks; ++rank) {
    shares.push_back({{rank * length, length}, {(chunks - 1 - rank) * length, length}});
  }
  return shares;
}

nn::RowShares split_by_work(const std::vector<int64_t>& work, int ranks) {
  const int64_t seq_len = static_cast<int64_t>(work.size());
  nn::RowShares simple = split_head_tail(seq_len, ranks), in_order = split_contiguous(seq_len, ranks);
  if (max_work(in_order, work) < max_work(simple, work)) simple = std::move(in_order);
  nn::RowShares dealt = deal_blocks(work, ranks);
  const int64_t most = max_work(dealt, work);
  return max_work(simple, work) <= most + most / 100 ? simple : dealt;
}

}  // namespace titan::parallel
