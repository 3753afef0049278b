#pragma once

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"
#include "controller/api/answer_router.h"
#include "controller/api/convert.h"
#include "controller/api/stream.h"

namespace titan::api {

// Streams data from nodes with one question in flight. The next question is sent once the previous answer is written,
// so that a slow reader slows the reading and nothing accumulates here. A source is identified by its index.
template <typename Chunk, typename Answer>
class NodeStream : public Stream<Chunk> {
 public:
  NodeStream(reconcile::Reconciler& reconciler, AnswerRouter<Answer>& router)
      : reconciler_(reconciler), router_(router) {}
  ~NodeStream() override { router_.drop(asked_); }

  // Runs every 200 ms: looks again at sources that had nothing new, and gives up on a node that does not answer.
  void wake() override {
    {
      sync::Lock lock(this->mutex_);
      recheck_sources();
      if (asking() && ++ticks_waited_ > kTicksToAnswer) give_up("does not answer");
    }
    Stream<Chunk>::wake();
  }

 protected:
  // All run under the lock.
  virtual void recheck_sources() = 0;
  virtual void on_answer(size_t index, const Answer& answer) = 0;
  virtual void on_unreachable(size_t index, const std::string& why) = 0;

  bool asking() const { return asked_ != 0; }
  // Sends the message that question(number of the request) returns.
  template <typename Question>
  void ask_node(size_t index, const std::string& node, const Question& question) {
    const std::weak_ptr<Stream<Chunk>> weak = this->weak_from_this();
    asked_ = router_.expect(node, [weak, index](const Answer& answer) {
      if (const auto self = weak.lock()) static_cast<NodeStream&>(*self).take(index, answer);
    });
    asked_index_ = index;
    ticks_waited_ = 0;
    if (!reconciler_.send(node, question(asked_)).ok()) give_up("cannot be reached");
  }

  reconcile::Reconciler& reconciler_;

 private:
  void take(size_t index, const Answer& answer) {
    {
      sync::Lock lock(this->mutex_);
      asked_ = 0;
      on_answer(index, answer);
    }
    Stream<Chunk>::wake();
  }
  void give_up(const char* why) {
    router_.drop(std::exchange(asked_, 0));
    on_unreachable(asked_index_, why);
  }

  AnswerRouter<Answer>& router_;
  int64_t asked_ = 0;  // Request in flight; 0: none.
  size_t asked_index_ = 0;
  int ticks_waited_ = 0;
};

// Returns the number of ranks of an attempt (0: the newest), or the number in the job's spec if there is no such
// attempt.
inline int world_size_of(const reconcile::JobView& view, int attempt = 0) {
  for (auto it = view.attempts.rbegin(); it != view.attempts.rend(); ++it) {
    if (attempt == 0 || (*it)->number == attempt) return (*it)->ranks;
  }
  return view.record->spec.ranks;
}

// Checks the ranks of a request. Errors: InvalidArgument for a rank that the attempt (0: the newest) does not have.
template <typename Ranks>
absl::Status check_ranks(const Ranks& ranks, const reconcile::JobView& view, int attempt = 0) {
  const int world = world_size_of(view, attempt);
  for (const int rank : ranks) {
    if (rank >= 0 && rank < world) continue;
    return rpc::bad_request("RANK_NOT_FOUND",
                            {{"ranks", absl::StrCat(rank, " is not one of the job's ", counted(world, "rank"))}});
  }
  return absl::OkStatus();
}

inline absl::Status no_such_attempt(const reconcile::JobView& view, int attempt) {
  return rpc::error(
      absl::StatusCode::kNotFound, "ATTEMPT_NOT_FOUND",
      absl::StrCat("job ", view.record->name, " has ", counted(view.record->attempts, "attempt"), ", not ", attempt),
      {{"job", view.record->name}});
}

}  // namespace titan::api
