#pragma once

// What is done once a transaction's outcome is known.

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "controller/core/input.h"
#include "controller/core/view.h"
#include "controller/job/record.h"

namespace titan::core {

struct Created {
  std::string uid;
};
struct CancelAccepted {
  RequestId request = 0;
  std::string uid;
  bool now = false;
  std::string actor;
  std::string request_id;
};
struct UpdateAccepted {
  UpdateJob asked;
};
struct Cordoned {
  CordonNode asked;
  bool leave = false;  // Of a drain.
};
struct Deleted {
  RequestId request = 0;
  JobViewPtr view;
  job::Tombstone tombstone;
};
struct Dismissed {
  StopUnknown asked;
  std::vector<AttemptKey> keys;
};
// Said to the nodes of an attempt if it still is what it was.
enum class Command { kPrepare, kStart, kCheckpoint, kStop };
struct Tell {
  AttemptKey attempt;
  Command command = Command::kPrepare;
  std::vector<std::string> nodes;
};
using Continuation = std::variant<Created, CancelAccepted, UpdateAccepted, Cordoned, Deleted, Dismissed, Tell>;

// What waits for the outcome of a transaction, by its token. Nothing waits twice: no token is given out again.
class Expected {
 public:
  Token add(Continuation continuation);
  std::optional<Continuation> take(Token token);  // Nothing: nobody waits for it, or no longer.

 private:
  Token last_ = 0;
  std::map<Token, Continuation> waiting_;
};

}  // namespace titan::core
