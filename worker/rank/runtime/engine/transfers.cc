#include "worker/rank/runtime/engine/transfers.h"

#include <utility>

namespace titan::runtime {

using pipeline::Action;
using pipeline::ComputationType;

namespace {

constexpr int kReceivesAhead = 2;  // Messages whose transfer may overlap the current work.

}  // namespace

Message consumed_by(const Action& action, int stages) {
  const bool forward = action.work == ComputationType::kForward;
  const bool gradient = action.work == ComputationType::kBackward || action.work == ComputationType::kInputGradient;
  if (forward && action.stage > 0) return {action.stage, action.microbatch, false};
  if (gradient && action.stage + 1 < stages) return {action.stage, action.microbatch, true};
  return kNoMessage;
}

Message produced_by(const Action& action, int stages) {
  const bool forward = action.work == ComputationType::kForward;
  const bool gradient = action.work == ComputationType::kBackward || action.work == ComputationType::kInputGradient;
  if (forward && action.stage + 1 < stages) return {action.stage + 1, action.microbatch, false};
  if (gradient && action.stage > 0) return {action.stage - 1, action.microbatch, true};
  return kNoMessage;
}

Transfers::Transfers(const pipeline::Schedule& schedule, const comm::Group* group,
                     std::function<at::Tensor(const Message&)> empty)
    : schedule_(schedule), group_(group), rank_(group == nullptr ? 0 : group->rank()), empty_(std::move(empty)) {
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    for (size_t step = 0; step < schedule.steps[rank].size(); ++step) {
      for (const Action& action : schedule.steps[rank][step].actions) {
        const Message made = produced_by(action, schedule.stages);
        if (made != kNoMessage && rank != rank_ && schedule.rank_of(made.stage) == rank_) {
          expected_[rank].push_back({made, static_cast<int>(step)});
          sent_by_[made] = {rank, static_cast<int>(step)};
        }
        const Message needed = consumed_by(action, schedule.stages);
        if (needed != kNoMessage && rank != rank_) taken_in_[needed] = static_cast<int>(step);
      }
    }
  }
}

int Transfers::tag(const Message& message) const {
  return (message.stage * schedule_.microbatches + message.microbatch) * 2 + (message.gradient ? 1 : 0);
}

void Transfers::post_until(const Message& message) {
  const auto sender = sent_by_.find(message);
  if (sender == sent_by_.end() || incoming_.count(message) > 0) return;
  const int peer = sender->second.first;
  std::deque<Expected>& queue = expected_[peer];
  while (!queue.empty()) {
    const Message next = queue.front().message;
    queue.pop_front();
    Incoming& incoming = incoming_[next];
    incoming.tensor = empty_(next);
    incoming.pending = group_->recv(incoming.tensor, peer, tag(next));
    if (next == message) return;
  }
}

void Transfers::look_ahead(int step) {
  const auto& steps = schedule_.steps[rank_];
  int messages = 0;
  for (size_t i = static_cast<size_t>(step); i < steps.size() && messages < kReceivesAhead; ++i) {
    for (const Action& action : steps[i].actions) {
      const Message needed = consumed_by(action, schedule_.stages);
      if (needed == kNoMessage || sent_by_.count(needed) == 0) continue;
      post_until(needed);
      ++messages;
    }
  }
}

at::Tensor Transfers::take(const Message& message) {
  post_until(message);
  const auto found = incoming_.find(message);
  TORCH_CHECK(found != incoming_.end(), "stage ", message.stage, " has no ", message.gradient ? "gradient" : "input",
              " of microbatch ", message.microbatch);
  Incoming incoming = std::move(found->second);
  incoming_.erase(found);
  incoming.pending.wait();
  if (const auto sender = sent_by_.find(message); sender != sent_by_.end()) {
    let_go(sender->second.first, sender->second.second);
  }
  return std::move(incoming.tensor);
}

void Transfers::give(const Message& message, at::Tensor tensor) {
  const int peer = schedule_.rank_of(message.stage);
  if (peer == rank_) {
    incoming_[message].tensor = std::move(tensor);
    return;
  }
  comm::Pending pending = group_->send(tensor.contiguous(), peer, tag(message));
  outgoing_[peer].push_back({taken_in_.at(message), std::move(pending)});
}

// A message that `peer` produced in step `step` shows that it has finished all earlier steps. So what they consumed has
// arrived, and its memory can be freed. Nothing else may wait for a send, or two ranks could deadlock.
void Transfers::let_go(int peer, int step) {
  std::deque<Outgoing>& queue = outgoing_[peer];
  for (auto one = queue.begin(); one != queue.end();) {
    if (one->taken_in >= step) {
      ++one;
      continue;
    }
    one->pending.wait();
    one = queue.erase(one);
  }
}

void Transfers::finish() {
  for (auto& [peer, queue] : outgoing_) {
    for (Outgoing& one : queue) one.pending.wait();
  }
  outgoing_.clear();
}

}  // namespace titan::runtime
