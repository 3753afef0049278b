#pragma once

// A large text encoder on several ranks: each holds a share of every weight, and a block's weights are whole only while
// the block runs. (ZeRO stage 3, arXiv 1910.02054, without gradients.)

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/rank/comm/group.h"
#include "worker/rank/model/encoders/frozen_weights.h"
#include "worker/rank/model/encoders/parameters.h"
#include "worker/rank/model/encoders/text_encoder.h"

namespace titan::encoders {

// A rank's rows, of dim 0, of an encoder's weights: of n rows the ranks hold ceil(n / ranks) each, the last ones fewer
// or none. A gathered weight has the bits that a rank alone would hold.
class ShardedWeights {
 public:
  // Takes over the weights of the encoder's parameters, which have no values yet. The blocks of `encoder` and `group`
  // must outlive this; the encoder itself may be moved.
  ShardedWeights(const TextEncoder& encoder, const comm::Group& group, const Placement& placement);

  // Reads this rank's rows, and nothing else, from the files. Holds at most the rows of one parameter in addition.
  // Errors: those of load() in parameters.h.
  absl::Status load(const FrozenWeights& weights);
  // Draws this rank's rows: those of draw() in parameters.h.
  absl::Status draw(uint64_t seed);

  // Returns hooks for TextEncoder::encode(), which gather a block's weights before it runs and free them after. The
  // next block's gather runs meanwhile. The call becomes collective: the group's ranks must make the same calls in the
  // same order, also in relation to the group's other collectives. Numbers of rows may differ.
  BlockHooks hooks();

  // Returns the bytes of this rank's rows.
  int64_t held_bytes() const;
  // Returns the most bytes of gathered weights that a call has held at one time so far.
  int64_t most_gathered_bytes() const { return most_gathered_bytes_; }

 private:
  struct Shard {
    nn::Parameter* parameter;
    int64_t first_row, rows;
    at::Tensor held;      // [ceil(n / ranks), ...] in the held form; rows that do not exist are zero.
    at::Tensor gathered;  // [ranks * ceil(n / ranks), ...] from begin() to free().
    comm::Pending gather;
  };
  using Block = std::vector<Shard>;

  template <typename Fill>
  absl::Status fill(const Fill& rows_of);
  void begin(Block& block);
  void finish(Block& block);
  void free(Block& block);

  const comm::Group& group_;
  const Placement placement_;
  std::vector<Block> blocks_;
  int64_t gathered_bytes_ = 0, most_gathered_bytes_ = 0;
};

}  // namespace titan::encoders
