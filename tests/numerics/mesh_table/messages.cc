#include "tests/numerics/mesh_table/messages.h"

namespace titan::testing {

using pipeline::Action;
using pipeline::ComputationType;

Messages::Messages(const pipeline::Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {
  for (int other = 0; other < schedule.ranks; ++other) {
    for (size_t step = 0; step < schedule.steps[other].size(); ++step) {
      for (const Action& action : schedule.steps[other][step].actions) {
        Message message;
        if (consumed_by(action, message)) needed_in_[message] = static_cast<int>(step);
        if (other == rank || !produced_by(action, message) || schedule.rank_of(std::get<0>(message)) != rank) continue;
        expected_[other].push_back(message);
        senders_[message] = {other, static_cast<int>(step)};
      }
    }
  }
}

bool Messages::is_gradient_work(const Action& action) {
  return action.work == ComputationType::kBackward || action.work == ComputationType::kInputGradient;
}

bool Messages::consumed_by(const Action& action, Message& message) const {
  message = {action.stage, action.microbatch, is_gradient_work(action)};
  if (action.work == ComputationType::kForward) return action.stage > 0;
  return is_gradient_work(action) && action.stage + 1 < schedule_.stages;
}

bool Messages::produced_by(const Action& action, Message& message) const {
  const bool forward = action.work == ComputationType::kForward;
  message = {action.stage + (forward ? 1 : -1), action.microbatch, !forward};
  return forward ? action.stage + 1 < schedule_.stages : is_gradient_work(action) && action.stage > 0;
}

void Messages::post_until(const Message& message) {
  if (here_.count(message) > 0) return;
  std::deque<Message>& queue = expected_.at(senders_.at(message).rank);
  while (here_.count(message) == 0) {
    here_.insert(queue.front());
    queue.pop_front();
  }
}

void Messages::begin_step(size_t step) {
  int ahead = 0;
  for (size_t i = step; i < schedule_.steps[rank_].size() && ahead < 2; ++i) {
    for (const Action& action : schedule_.steps[rank_][i].actions) {
      Message message;
      if (!consumed_by(action, message) || senders_.count(message) == 0) continue;
      post_until(message);
      ++ahead;
    }
  }
}

void Messages::take_input(const Action& action) {
  Message message;
  if (!consumed_by(action, message)) return;
  const auto sender = senders_.find(message);
  if (sender != senders_.end()) post_until(message);
  here_.erase(message);
  if (sender == senders_.end()) return;
  const Sender& from = sender->second;
  std::erase_if(sent_,
                [&](const auto& one) { return one.second == from.rank && needed_in_.at(one.first) < from.step; });
}

void Messages::give_output(const Action& action) {
  Message message;
  if (!produced_by(action, message)) return;
  const int receiver = schedule_.rank_of(std::get<0>(message));
  if (receiver == rank_) {
    here_.insert(message);
  } else {
    sent_[message] = receiver;
  }
}

int64_t Messages::count() const { return static_cast<int64_t>(here_.size() + sent_.size()); }

}  // namespace titan::testing
