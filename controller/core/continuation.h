#pragma once

// Continuations: what to do once the outcome of a transaction is known.

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
  bool leave = false;  // True for a drain: the ranks on the node save and leave.
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
// A command for the listed nodes. It is dropped if the transaction was refused, or if the attempt is no longer the
// current one of its job.
enum class CommandKind { kPrepare, kStart, kCheckpoint, kStop };
struct SendCommand {
  AttemptKey attempt;
  CommandKind command = CommandKind::kPrepare;
  std::vector<std::string> nodes;
};
using Continuation = std::variant<Created, CancelAccepted, UpdateAccepted, Cordoned, Deleted, Dismissed, SendCommand>;

// Continuations that wait for the outcome of a transaction, by token. Each runs at most once: no token is reused.
class Expected {
 public:
  ChangeToken add(Continuation continuation);
  std::optional<Continuation> take(ChangeToken token);  // Removes and returns it. Nothing: none waits for the token.

 private:
  ChangeToken last_ = 0;
  std::map<ChangeToken, Continuation> waiting_;
};

}  // namespace titan::core
