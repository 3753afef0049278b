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

// What one rank brings to an operation. Splits are rows of dim 0, for all_to_all only.
struct LocalPart {
  at::Tensor output;
  at::Tensor input;
  std::vector<int64_t> output_splits;
  std::vector<int64_t> input_splits;
};

// Why something will never be done.
struct LocalTrouble {
  std::string why;            // Empty: nothing is wrong.
  bool disagreement = false;  // The ranks do not do the same thing: an error in all of them. Else one is gone.

  explicit operator bool() const { return !why.empty(); }
};

// One collective of all ranks of a group, or one message of two of them.
struct LocalOperation {
  std::string signature;         // What must be the same for everybody: operation, sizes, data type.
  std::vector<int> ranks;        // Who takes part.
  std::vector<LocalPart> parts;  // In the order of `ranks`.
  std::vector<bool> arrived;
  std::function<void(std::vector<LocalPart>&)> execute;
  bool running = false;  // Its tensors are being written.
  bool done = false;
  LocalTrouble trouble;
};

// The meeting place of a group's ranks that are threads of one process. To issue an operation is to leave one's tensors
// here and never blocks: whoever comes last does the work for everybody in its own thread. Collectives meet by their
// number, messages by (source, destination, tag) in order. After an error the group is unusable, as with other
// backends.
class LocalGroup {
 public:
  explicit LocalGroup(int size) : size_(size), sequence_(size, 0), gone_(size, false) {}

  using Execute = std::function<void(std::vector<LocalPart>&)>;
  std::shared_ptr<LocalOperation> collective(int rank, const std::string& signature, LocalPart part, Execute execute);
  // A message; the tensor is the part's input on the sending side and its output on the receiving one.
  std::shared_ptr<LocalOperation> message(int source, int destination, int tag, bool sending,
                                          const std::string& signature, LocalPart part);

  bool done(const LocalOperation& operation);
  // Returns once the operation is done. When it never will be: throws c10::DistBackendError for a rank that is gone or
  // took no part within the timeout, c10::ValueError where ranks disagree about it. What the operation itself throws
  // (no memory) goes to the rank that came last and did the work; for the others that one is gone.
  void wait(LocalOperation& operation, std::chrono::milliseconds timeout);

  // Everything that is not done ends with an error, now and from now on.
  void fail(const std::string& why);
  // The rank takes no further part: what it has not yet joined fails.
  void leave(int rank);

 private:
  struct Channel {
    std::deque<std::shared_ptr<LocalOperation>> waiting;  // All of the side that is ahead.
    bool senders_wait = false;
  };

  void check_usable();
  void fail_locked(LocalTrouble trouble);
  void meet(LocalOperation& operation, size_t place, const std::string& signature, LocalPart part);
  void run(LocalOperation& operation, int rank);
  std::string missing(const LocalOperation& operation);

  const int size_;
  sync::Mutex mutex_;
  sync::Condition changed_;
  LocalTrouble broken_ TITAN_GUARDED_BY(mutex_);            // Why the group is unusable.
  std::vector<int64_t> sequence_ TITAN_GUARDED_BY(mutex_);  // Each rank's next collective.
  std::vector<bool> gone_ TITAN_GUARDED_BY(mutex_);
  std::map<int64_t, std::shared_ptr<LocalOperation>> collectives_ TITAN_GUARDED_BY(mutex_);  // Somebody is missing.
  std::map<std::tuple<int, int, int>, Channel> channels_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::comm
