#pragma once

#include <ATen/ATen.h>

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "common/plan/pipeline/schedule.h"
#include "worker/rank/comm/group.h"

namespace titan::runtime {

// What goes from stage to stage: an output on its way up, or the gradient of an input on its way down.
struct Message {
  int stage = 0;  // That gets it.
  int microbatch = 0;
  bool gradient = false;

  auto operator<=>(const Message&) const =
      default;  // NOLINT(modernize-use-nullptr): clang-tidy takes its 0 for a pointer.
};

// The message that an action needs before it can run, and the one that it makes.
inline constexpr Message kNoMessage{-1, -1, false};
Message needed_by(const pipeline::Action& action, int stages);
Message made_by(const pipeline::Action& action, int stages);

// The messages of one rank during one run of a schedule, which is all that it needs to know about the other ranks.
class Transfers {
 public:
  // `empty` makes a tensor for what a message brings.
  Transfers(const pipeline::Schedule& schedule, const comm::Group* group,
            std::function<at::Tensor(const Message&)> empty);

  // Posts receives for what the steps from `step` on need soonest.
  void look_ahead(int step);
  // Waits for a message.
  at::Tensor take(const Message& message);
  void give(const Message& message, at::Tensor tensor);
  // Waits for all sends.
  void finish();

 private:
  struct Expected {
    Message message;
    int made_in = 0;  // The sender's step.
  };
  struct Incoming {
    at::Tensor tensor;
    comm::Pending pending;
  };
  struct Outgoing {
    int taken_in = 0;  // The receiver's step.
    comm::Pending pending;
  };

  void post_until(const Message& message);
  void let_go(int peer, int step);
  int tag(const Message& message) const;

  const pipeline::Schedule& schedule_;
  const comm::Group* const group_;
  const int rank_;
  const std::function<at::Tensor(const Message&)> empty_;
  std::map<int, std::deque<Expected>> expected_;    // By sender, in the order of sending, not posted yet.
  std::map<Message, std::pair<int, int>> sent_by_;  // Sender and its step, of all that come from other ranks.
  std::map<Message, int> taken_in_;                 // Receiver's step, of all that go to other ranks.
  std::map<Message, Incoming> incoming_;
  std::map<int, std::deque<Outgoing>> outgoing_;  // By receiver.
};

}  // namespace titan::runtime
