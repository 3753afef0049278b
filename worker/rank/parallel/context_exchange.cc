#include "worker/rank/parallel/context_exchange.h"

#include <array>
#include <utility>

namespace titan::parallel {
namespace {

// The blocks of a group in the order of a ring that turns towards higher ranks: own, then the neighbour's below.
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
    at::Tensor parts;  // What this rank adds to each rank's block.
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

// A message to the next rank and one from the previous, both under way.
class Turn {
 public:
  // NCCL's messages of a pair of ranks wait for each other in the order of their issue: neighbours must not both send
  // first.
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

  // The sum for a block follows it around the ring, one step behind, and comes home with the last turn.
  at::Tensor visit_and_reduce(at::Tensor own, const Contribute& contribute) const override {
    at::Tensor present = std::move(own), sum;
    std::optional<Turn> sums_turn;
    at::Tensor outgoing;  // Of the turn under way.
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
  static constexpr int kBlocks = 1, kSums = 2;  // Tags.

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
