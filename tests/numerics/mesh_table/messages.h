#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "common/plan/pipeline/schedule.h"

namespace titan::testing {

// How many activations and gradients are on their way to and from one rank of a pipeline, by what the transport
// promises: receives are posted in the order in which a rank sends, for the two messages that are needed next; what was
// sent is held until the receiver is known to have finished the step that needed it, because a message came that it
// made later. Between stages of one rank a message waits until it is taken.
class Messages {
 public:
  Messages(const pipeline::Schedule& schedule, int rank);

  void begin_step(size_t step);
  void take_input(const pipeline::Action& action);
  void give_output(const pipeline::Action& action);
  int64_t count() const;  // Of tensors that are held.

 private:
  using Message = std::tuple<int, int, bool>;  // Stage that gets it, microbatch, whether it is a gradient.
  struct Sender {
    int rank = 0, step = 0;
  };
  static bool is_gradient_work(const pipeline::Action& action);
  bool consumed_by(const pipeline::Action& action, Message& message) const;
  bool produced_by(const pipeline::Action& action, Message& message) const;
  void post_until(const Message& message);

  const pipeline::Schedule& schedule_;
  const int rank_;
  std::map<int, std::deque<Message>> expected_;  // By sender, in its order.
  std::map<Message, Sender> senders_;            // Of what comes from other ranks.
  std::map<Message, int> needed_in_;             // Step of the receiver.
  std::set<Message> here_;                       // Posted, arrived, or handed over inside the rank.
  std::map<Message, int> sent_;                  // By message, the receiver.
};

}  // namespace titan::testing
