#pragma once

#include <ATen/ATen.h>

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "common/plan/pipeline/schedule.h"
#include "worker/rank/comm/group.h"

namespace titan::runtime {

// A message between stages: an output to a later stage, or the gradient of an input to an earlier one.
struct Message {
  int stage = 0;  // The receiving stage.
  int microbatch = 0;
  bool gradient = false;

  auto operator<=>(const Message&) const =
      default;  // NOLINT(modernize-use-nullptr): clang-tidy takes its 0 for a pointer.
};

// Return the message that an action consumes and the one that it produces, or kNoMessage.
inline constexpr Message kNoMessage{-1, -1, false};
Message consumed_by(const pipeline::Action& action, int stages);
Message produced_by(const pipeline::Action& action, int stages);

// The messages of one rank during one run of a schedule. A rank needs no other knowledge about the other ranks.
class Transfers {
 public:
  // `empty` allocates a tensor [B, T, dim] for a message.
  Transfers(const pipeline::Schedule& schedule, const comm::Group* group,
            std::function<at::Tensor(const Message&)> empty);

  // Posts receives for the first messages that `step` and the steps after it need.
  void look_ahead(int step);
  // Waits for a message and returns its tensor [B, T, dim].
  at::Tensor take(const Message& message);
  // Sends a tensor [B, T, dim], or stores it if the receiving stage is on this rank.
  void give(const Message& message, at::Tensor tensor);
  // Waits for all sends.
  void finish();

 private:
  struct Expected {
    Message message;
    int made_in = 0;  // Step of the sender that produces it.
  };
  struct Incoming {
    at::Tensor tensor;  // [B, T, dim]
    comm::Pending pending;
  };
  struct Outgoing {
    int taken_in = 0;  // Step of the receiver that consumes it.
    comm::Pending pending;
  };

  void post_until(const Message& message);
  void let_go(int peer, int step);
  int tag(const Message& message) const;

  const pipeline::Schedule& schedule_;
  const comm::Group* const group_;
  const int rank_;
  const std::function<at::Tensor(const Message&)> empty_;
  std::map<int, std::deque<Expected>> expected_;    // By sender, in sending order, not yet posted.
  std::map<Message, std::pair<int, int>> sent_by_;  // Sender and its step, for all messages from other ranks.
  std::map<Message, int> taken_in_;                 // Receiver's step, for all messages to other ranks.
  std::map<Message, Incoming> incoming_;
  std::map<int, std::deque<Outgoing>> outgoing_;  // By receiver.
};

}  // namespace titan::runtime
