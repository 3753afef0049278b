#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/sync/sync.h"

namespace titan::comm {

// One rank's part of an operation. Splits are rows of dim 0, for all_to_all only.
struct LocalPart {
  // Destination [...]; for all_to_all [rows, elements].
  at::Tensor output;
  // Source [...]; for all_to_all [rows, elements].
  at::Tensor input;
  std::vector<int64_t> output_splits;
  std::vector<int64_t> input_splits;
};

// Why an operation will never complete.
struct LocalError {
  std::string why;  // Empty: no error.
  // The ranks issue different operations, which is an error on all of them. False: a rank is gone.
  bool disagreement = false;

  explicit operator bool() const { return !why.empty(); }
};

// One collective of all ranks of a group, or one message between two of them.
struct LocalOperation {
  std::string signature;         // Must be equal on all ranks: operation, sizes, data type.
  std::vector<int> ranks;        // The participants.
  std::vector<LocalPart> parts;  // In the order of `ranks`.
  std::vector<bool> arrived;
  std::function<void(std::vector<LocalPart>&)> execute;
  bool running = false;  // Its tensors are being written.
  bool done = false;
  LocalError trouble;
};

// The meeting point of a group's ranks that are threads of one process. Issuing an operation stores the rank's tensors
// here and never blocks; the last rank to arrive executes it for all in its own thread. Collectives are matched by
// number, messages by (source, destination, tag) in order. After an error the group is unusable, as with other
// backends.
class LocalGroup {
 public:
  explicit LocalGroup(int size) : size_(size), sequence_(size, 0), gone_(size, false) {}

  using Execute = std::function<void(std::vector<LocalPart>&)>;
  // Issues a collective. `execute` is run by the last rank to arrive. Throws like wait() if the group is unusable.
  std::shared_ptr<LocalOperation> collective(int rank, const std::string& signature, LocalPart part, Execute execute);
  // Issues a message. The tensor is the part's input on the sending side and its output on the receiving side. Throws
  // like collective().
  std::shared_ptr<LocalOperation> message(int source, int destination, int tag, bool sending,
                                          const std::string& signature, LocalPart part);

  bool done(const LocalOperation& operation);
  // Returns when the operation is done. Throws c10::DistBackendError if a rank is gone or took no part within the
  // timeout, and c10::ValueError if the ranks disagree about it. An exception of the operation itself (out of memory)
  // goes to the rank that executed it; for the others that rank is gone.
  void wait(LocalOperation& operation, std::chrono::milliseconds timeout);

  // Ends every incomplete operation with an error, now and later.
  void fail(const std::string& why);
  // Ends the rank's participation: if an operation still needs it, the group fails.
  void leave(int rank);

 private:
  struct Channel {
    std::deque<std::shared_ptr<LocalOperation>> waiting;  // All from the side that is ahead.
    bool senders_wait = false;
  };

  void check_usable();
  void fail_locked(LocalError trouble);
  void meet(LocalOperation& operation, size_t place, const std::string& signature, LocalPart part);
  void run(LocalOperation& operation, int rank);
  std::string missing(const LocalOperation& operation);

  const int size_;
  sync::Mutex mutex_;
  sync::Condition changed_;
  LocalError broken_ TITAN_GUARDED_BY(mutex_);              // Why the group is unusable.
  std::vector<int64_t> sequence_ TITAN_GUARDED_BY(mutex_);  // Each rank's next collective.
  std::vector<bool> gone_ TITAN_GUARDED_BY(mutex_);
  std::map<int64_t, std::shared_ptr<LocalOperation>> collectives_ TITAN_GUARDED_BY(mutex_);  // Incomplete.
  std::map<std::tuple<int, int, int>, Channel> channels_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::comm
