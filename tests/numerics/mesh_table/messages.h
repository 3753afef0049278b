#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "common/plan/pipeline/schedule.h"

namespace titan::testing {

// Counts the activations and gradients in flight to and from one rank of a pipeline, by the rules of the transport.
// From each sender, receives are posted in its order of sending, for the two messages that are needed next. A sent
// message is held until a message arrives that proves that the receiver has finished the step that needed it. A message
// between stages of one rank is held until the later stage uses it.
class Messages {
 public:
  Messages(const pipeline::Schedule& schedule, int rank);

  void begin_step(size_t step);
  void take_input(const pipeline::Action& action);
  void give_output(const pipeline::Action& action);
  int64_t count() const;  // Number of tensors that are held.

 private:
  using Message = std::tuple<int, int, bool>;  // Receiving stage, microbatch, whether it is a gradient.
  struct Sender {
    int rank = 0, step = 0;
  };
  static bool is_gradient_work(const pipeline::Action& action);
  bool consumed_by(const pipeline::Action& action, Message& message) const;
  bool produced_by(const pipeline::Action& action, Message& message) const;
  void post_until(const Message& message);

  const pipeline::Schedule& schedule_;
  const int rank_;
  std::map<int, std::deque<Message>> expected_;  // Keyed by sender, in the sender's order.
  std::map<Message, Sender> senders_;            // Senders of messages from other ranks.
  std::map<Message, int> needed_in_;             // Step of the receiver.
  std::set<Message> here_;                       // Posted, arrived, or handed over inside the rank.
  std::map<Message, int> sent_;                  // Receiver of each message.
};

}  // namespace titan::testing
