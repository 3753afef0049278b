#pragma once

// How many requests of one caller come in at a time. gRPC holds a message while it comes, whatever it says of its
// length (up to 4 GiB), and tells neither length nor bytes before all of it is there. So what can be bounded is how
// many there are and for how long, and of each caller alone: whoever sends much waits for themselves.

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "common/clock/clock.h"
#include "common/sync/sync.h"
#include "controller/auth/gate.h"

namespace titan::api {

class RequestReads {
 public:
  struct Options {
    size_t of_a_caller = 4;
    absl::Duration patience = absl::Seconds(30);  // For one that does not come to its end while others wait.
  };
  // One request. Each function is called once at most, from any thread, and outside of the lock; give_up() may come
  // after the request was read.
  struct Read {
    std::function<void()> begin;
    std::function<void()> give_up;
  };

  RequestReads(Options options, const Clock& clock) : options_(options), clock_(clock) {}

  // Begins when the caller has fewer than `of_a_caller` that have begun, in the order of entering: now, or while
  // another one leaves.
  void enter(const std::string& actor, std::shared_ptr<const Read> read);
  // Of one that has begun: it is there, or will never be.
  void leave(const std::string& actor, const Read* read);
  // Gives up those that have been coming in for longer than the patience, of callers who have others waiting.
  void look();

 private:
  struct Begun {
    std::shared_ptr<const Read> read;
    absl::Duration since;
  };
  struct OfCaller {
    std::vector<Begun> begun;
    std::deque<std::shared_ptr<const Read>> waiting;
  };

  const Options options_;
  const Clock& clock_;
  sync::Mutex mutex_;
  std::unordered_map<std::string, OfCaller> callers_ TITAN_GUARDED_BY(mutex_);  // With a request that has begun.
};

// What stands before every method.
struct Entrance {
  const auth::Gate& gate;
  RequestReads& reads;
};

}  // namespace titan::api
