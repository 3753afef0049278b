#include "worker/rank/parallel/context.h"

#include <c10/util/Exception.h>

#include <array>
#include <utility>

#include "worker/rank/nn/attention_blocks.h"
#include "worker/rank/nn/attention_kernel.h"
#include "worker/rank/nn/layers.h"

namespace titan::parallel {
namespace {

nn::RowShares deal(const nn::MicrobatchContext& whole, const ContextParallel& context) {
  const int64_t seq_len = whole.tokens.size(1);
  const int ranks = context.group->size();
  switch (context.balance) {
    case LoadBalance::kNone:
      return split_contiguous(seq_len, ranks);
    case LoadBalance::kHeadTail:
      return split_head_tail(seq_len, ranks);
    case LoadBalance::kWork:
      return split_by_work(attention_work(whole.documents, whole.tokens.size(0), seq_len, context.layers), ranks);
  }
  TORCH_CHECK(false, "context parallel: no such balance");
}

}  // namespace

nn::MicrobatchContext shard_microbatch(const nn::MicrobatchContext& whole, const ContextParallel& context) {
  if (context.group->size() == 1) return whole;
  const int64_t seq_len = whole.tokens.size(1);
  auto shares = std::make_shared<const nn::RowShares>(deal(whole, context));
  const std::vector<nn::Segment>& segments = shares->at(context.group->rank());
  const auto take = [&](const at::Tensor& tensor, int64_t dim) {
    if (!tensor.defined()) return tensor;
    std::vector<at::Tensor> parts;
    for (const nn::Segment& segment : segments) parts.push_back(tensor.narrow(dim, segment.position, segment.length));
    return at::cat(parts, dim);
  };
  nn::MicrobatchContext share = whole;
  share.tokens = take(whole.tokens, 1);
  share.labels = take(whole.labels, 1);
  const at::Tensor positions =
      whole.positions.defined() ? whole.positions : at::arange(seq_len, whole.tokens.options().dtype(at::kLong));
  share.positions = take(positions, 0);
  share.whole_row = seq_len;
  share.shares = std::move(shares);
  return share;
}

namespace {

// Packs a rank's keys and values into one message [B, T, Hkv, D + Dv].
at::Tensor pack(const at::Tensor& k, const at::Tensor& v) { return at::cat({k.transpose(1, 2), v.transpose(1, 2)}, 3); }

struct KeysAndValues {
  KeysAndValues(const at::Tensor& packed, int64_t head)
      : k(packed.narrow(3, 0, head).transpose(1, 2)),
        v(packed.narrow(3, head, packed.size(3) - head).transpose(1, 2)) {}
  at::Tensor k, v;  // Views [B, Hkv, T, D] and [B, Hkv, T, Dv].
};

// Pairs of this rank's queries with the keys of each rank.
struct ContextPlan final : nn::AttentionPlan {
  std::vector<std::vector<nn::BlockPair>> pairs;  // Indexed by the rank that owns the keys.
  std::shared_ptr<const ContextExchange> exchange;
  nn::ScoreForm scores;
  at::Tensor largest;  // AttentionInput::largest.

  int64_t keys(const at::Tensor& k) const override { return k.size(2) * static_cast<int64_t>(pairs.size()); }

  nn::BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const at::Tensor& sinks) const override {
    nn::BlockwiseAttention attention(q, v.size(3), scores, /*once=*/false);
    exchange->visit(pack(k, v), [&](int owner, const at::Tensor& packed) {
      const KeysAndValues block(packed, k.size(3));
      attention.add(block.k, block.v, pairs[owner]);
      if (largest.defined()) nn::update_max_logits(q, block.k, pairs[owner], scores.scale, largest);
    });
    return attention.finish(sinks);
  }

  nn::AttentionGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const at::Tensor& sinks,
                                  const nn::BlockOutput& result) const override {
    nn::BlockwiseGradients gradients(grad_out, q, result, scores);
    const at::Tensor sum = exchange->visit_and_reduce(pack(k, v), [&](int owner, const at::Tensor& packed) {
      const KeysAndValues block(packed, k.size(3));
      at::Tensor part = at::zeros(packed.sizes(), packed.options().dtype(nn::accumulate_type(packed.scalar_type())));
      const KeysAndValues target(part, k.size(3));
      nn::GradientSum grad_k = nn::GradientSum::into(target.k), grad_v = nn::GradientSum::into(target.v);
      gradients.add(block.k, block.v, pairs[owner], grad_k, grad_v);
      return part;
    });
    const KeysAndValues own(sum, k.size(3));
    return {gradients.grad_q(), own.k.to(k.scalar_type()), own.v.to(v.scalar_type()),
            sinks.defined() ? gradients.grad_sinks(sinks) : at::Tensor()};
  }
};

}  // namespace

nn::AttentionCore context_parallel_attention(const ContextParallel& context) {
  if (context.group->size() == 1) return nn::attend;
  TORCH_CHECK(context.rotate == "allgather" || context.rotate == "alltoall", "context parallel: rotate method \"",
              context.rotate, "\" is neither \"allgather\" nor \"alltoall\"");
  std::shared_ptr<const ContextExchange> exchange =
      context.rotate == "alltoall" ? make_ring_exchange(*context.group) : make_gathering_exchange(*context.group);
  return [context, exchange](const nn::AttentionInput& input, const nn::MicrobatchContext& microbatch) {
    const int ranks = context.group->size();
    input.mask.check();
    auto plan = c10::make_intrusive<ContextPlan>();
    plan->exchange = exchange;
    plan->scores = {.scale = input.scale, .softcap = input.softcap};
    plan->causal = input.mask.causal;
    plan->largest = input.largest;
    // Without any condition positions do not matter, only that every rank has as many tokens.
    if (nn::AttentionMask{.causal = false} == input.mask) {
      plan->pairs.assign(ranks, {nn::unmasked_pair(input.q.size(2), input.k.size(2))});
      return nn::attend_by(std::move(plan), input);
    }
    const int64_t seq_len = input.q.size(2) * ranks;
    TORCH_CHECK(microbatch.whole_row == 0 || microbatch.whole_row == seq_len, "context parallel: ", ranks,
                " shares of ", input.q.size(2), " tokens do not make up rows of ", microbatch.whole_row);
    TORCH_CHECK(microbatch.shares != nullptr && static_cast<int>(microbatch.shares->size()) == ranks,
                "context parallel: shard_microbatch() has not split this microbatch over ", ranks, " ranks");
    const nn::Spans spans =
        nn::spans_of(input.mask.documents ? microbatch.documents : at::Tensor(), input.mask.chunk, seq_len);
    const std::vector<nn::Segment>& mine = microbatch.shares->at(context.group->rank());
    for (const std::vector<nn::Segment>& owned : *microbatch.shares) {
      plan->pairs.push_back(nn::visible_pairs(spans, input.mask.window, mine, owned, input.mask.causal));
    }
    return nn::attend_by(std::move(plan), input);
  };
}

namespace {

// Owner of the block at `step` of a ring that sends to higher ranks: first this rank's block, then the lower
// neighbour's.
int owner_at(const comm::Group& group, int step) { return (group.rank() - step + group.size()) % group.size(); }

class GatheringExchange final : public ContextExchange {
 public:
  explicit GatheringExchange(const comm::Group& group) : group_(group) {}

  void visit(at::Tensor own, const Use& use) const override {
    auto [all, gathering] = gather(own);
    use(group_.rank(), own);
    gathering.wait();
    for (int step = 1; step < group_.size(); ++step) {
      const int owner = owner_at(group_, step);
      use(owner, all.select(0, owner));
    }
  }

  at::Tensor visit_and_reduce(at::Tensor own, const Contribute& contribute) const override {
    auto [all, gathering] = gather(own);
    const std::vector<int64_t> shape = all.sizes().vec();
    at::Tensor parts;  // [ranks, ...]: this rank's contribution to each rank's block.
    const auto add = [&](int owner, const at::Tensor& packed) {
      const at::Tensor part = contribute(owner, packed);
      if (!parts.defined()) parts = at::empty(shape, part.options());
      parts.select(0, owner).copy_(part);
    };
    add(group_.rank(), own);
    gathering.wait();
    for (int step = 1; step < group_.size(); ++step) {
      const int owner = owner_at(group_, step);
      add(owner, all.select(0, owner));
    }
    all.reset();
    own.reset();
    at::Tensor sum = at::empty(parts.sizes().slice(1), parts.options());
    group_.reduce_scatter(sum, parts).wait();
    return sum;
  }

 private:
  std::pair<at::Tensor, comm::Pending> gather(const at::Tensor& own) const {
    std::vector<int64_t> shape = own.sizes().vec();
    shape.insert(shape.begin(), group_.size());
    at::Tensor all = at::empty(shape, own.options());
    comm::Pending gathering = group_.all_gather(all, own);
    return {std::move(all), std::move(gathering)};
  }

  const comm::Group& group_;
};

// A message to the next rank and one from the previous rank, both in flight.
class Turn {
 public:
  // NCCL completes the messages of a pair of ranks in the order in which they are issued, so neighbours must not both
  // send first.
  Turn(const comm::Group& group, const at::Tensor& outgoing, const at::Tensor& incoming, int tag) {
    const int next = (group.rank() + 1) % group.size(), previous = owner_at(group, 1);
    const bool send_first = group.rank() % 2 == 0;
    if (send_first) messages_[0] = group.send(outgoing, next, tag);
    messages_[1] = group.recv(incoming, previous, tag);
    if (!send_first) messages_[0] = group.send(outgoing, next, tag);
  }
  void wait() {
    for (comm::Pending& message : messages_) message.wait();
  }

 private:
  std::array<comm::Pending, 2> messages_;
};

class RingExchange final : public ContextExchange {
 public:
  explicit RingExchange(const comm::Group& group) : group_(group) {}

  void visit(at::Tensor own, const Use& use) const override {
    at::Tensor present = std::move(own);
    for (int step = 0; step < group_.size(); ++step) {
      const bool last = step + 1 == group_.size();
      at::Tensor following = last ? at::Tensor() : at::empty_like(present);
      std::optional<Turn> turn;
      if (!last) turn.emplace(group_, present, following, kBlocks);
      use(owner_at(group_, step), present);
      if (turn) turn->wait();
      present = std::move(following);
    }
  }

  // The sum for a block follows it around the ring one step later and arrives home with the last step.
  at::Tensor visit_and_reduce(at::Tensor own, const Contribute& contribute) const override {
    at::Tensor present = std::move(own), sum;
    std::optional<Turn> sums_turn;
    at::Tensor outgoing;  // Sums being sent.
    for (int step = 0; step < group_.size(); ++step) {
      const bool last = step + 1 == group_.size();
      at::Tensor following = last ? at::Tensor() : at::empty_like(present);
      std::optional<Turn> turn;
      if (!last) turn.emplace(group_, present, following, kBlocks);
      at::Tensor part = contribute(owner_at(group_, step), present);
      if (turn) turn->wait();
      present = std::move(following);
      if (sums_turn) {
        sums_turn->wait();
        sum.add_(part);
        part = std::move(sum);
      }
      outgoing = std::move(part);
      sum = at::empty_like(outgoing);
      sums_turn.emplace(group_, outgoing, sum, kSums);
    }
    sums_turn->wait();
    return sum;
  }

 private:
  static constexpr int kBlocks = 1, kSums = 2;  // Message tags.

  const comm::Group& group_;
};

}  // namespace

std::unique_ptr<ContextExchange> make_gathering_exchange(const comm::Group& group) {
  return std::make_unique<GatheringExchange>(group);
}

std::unique_ptr<ContextExchange> make_ring_exchange(const comm::Group& group) {
  return std::make_unique<RingExchange>(group);
}

}  // namespace titan::parallel
