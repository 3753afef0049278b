#pragma once

#include <ATen/ATen.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/sync/sync.h"

namespace titan::rank_protocol {
class FlightTail;
enum class CallState : uint8_t;
}  // namespace titan::rank_protocol

namespace titan::comm {

// A tensor as a recording describes it. Of more than four dims the first ones are folded into one.
struct RecordedTensor {
  static constexpr int64_t kMostDims = 4;

  std::array<int64_t, kMostDims> sizes{};
  int8_t dims = 0;
  at::ScalarType type = at::kByte;

  RecordedTensor() = default;
  explicit RecordedTensor(const at::Tensor& tensor);  // Of none: no dims.
};

enum class Progress : uint8_t {
  kScheduled,  // On its way into the backend.
  kStarted,    // The backend has it.
  kCompleted,  // This rank has waited for it, to the end.
};

// One collective of a group, or one message.
struct Recording {
  int64_t number = -1;  // Among all of this rank.
  // Where in the program: how many times all ranks had synchronized, and the number since. The first of the two means
  // the same on every rank.
  int64_t mark = 0;
  int64_t since_mark = 0;
  int group = 0;
  int64_t sequence = 0;  // On its group, from 1; on all ranks of the group the same.
  const char* operation = "";
  RecordedTensor input;
  RecordedTensor output;
  std::chrono::milliseconds timeout{};
  int64_t created_ns = 0;  // Since the epoch; 0: not yet.
  int64_t started_ns = 0;
  int64_t completed_ns = 0;
  Progress progress = Progress::kScheduled;
  bool waited = false;  // The device may still be at it.
};

// Who takes part. The messages from one rank to another count as a group of their own: they arrive in the order in
// which they are sent, and a group's number is the same on both sides.
struct RecordedGroup {
  std::string name;
  std::string description;
  std::vector<int> ranks;  // Global ones, ascending.
  int source = -1;         // Of messages: indices into `ranks`.
  int destination = -1;
  int64_t last_issued = 0;
  int64_t last_started = 0;
  int64_t last_completed = 0;

  bool messages() const { return source >= 0; }
};

// What a recorder held at one moment.
struct Flight {
  std::vector<RecordedGroup> groups;
  std::vector<Recording> recordings;  // In the order of their beginning.
};

// The last collectives and messages of one rank, for whoever wants to know what each rank did when a job stood still.
// One entry is written over another: no allocation after the constructor but for new groups. Thread-safe; no lock is
// held while a collective goes on.
class FlightRecorder {
 public:
  enum class Waits {
    kEndIt,    // Who has waited has the result (CPU).
    kQueueUp,  // The device has it by the next synchronized() (CUDA).
  };

  FlightRecorder(int64_t entries, Waits waits);
  ~FlightRecorder();

  // From now on the newest calls stand in this file too, for whoever looks at a rank that can say nothing any more.
  // Before the first call.
  void attach(std::unique_ptr<rank_protocol::FlightTail> tail);

  // The number of a new group.
  int add_group(std::string name, std::vector<int> ranks);

  // Return a number for what follows. `operation` is a literal.
  int64_t begin(int group, const char* operation, const at::Tensor& input, const at::Tensor& output,
                std::chrono::milliseconds timeout);
  // A message of `group` between two of its members, by index.
  int64_t begin_message(int group, const char* operation, int source, int destination, const at::Tensor& tensor,
                        std::chrono::milliseconds timeout);
  void started(int64_t number);  // The backend has it.
  void waiting(int64_t number);  // From now on this rank waits for it.
  void waited(int64_t number);

  // All ranks are here, at the same place of the program, and the device has done what this rank waited for.
  void synchronized();

  // From the earliest moment on that all ranks have in common: recordings of a stretch between two synchronized()
  // whose beginning is written over are left out, if there is a later stretch. So the numbers that the ranks' oldest
  // entries have on their groups agree, however many each rank makes in a step.
  Flight flight() const;

 private:
  int64_t add(int group, const char* operation, const at::Tensor& input, const at::Tensor& output,
              std::chrono::milliseconds timeout) TITAN_REQUIRES(mutex_);
  int way(int group, int source, int destination) TITAN_REQUIRES(mutex_);
  // Null when it is written over.
  Recording* find(int64_t number) TITAN_REQUIRES(mutex_);
  void complete(Recording& recording, int64_t now_ns) TITAN_REQUIRES(mutex_);
  int keep(RecordedGroup group) TITAN_REQUIRES(mutex_);
  void tell_group(int number) TITAN_REQUIRES(mutex_);
  void tell_call(const Recording& recording, int64_t elements) TITAN_REQUIRES(mutex_);
  void tell_state(int64_t number, rank_protocol::CallState state) TITAN_REQUIRES(mutex_);

  struct Tail;

  const int64_t entries_;  // That flight() gives.
  const Waits waits_;
  mutable sync::Mutex mutex_;
  int64_t capacity_ TITAN_GUARDED_BY(mutex_);            // As many, or more, where the tail needs them.
  std::unique_ptr<Tail> tail_ TITAN_GUARDED_BY(mutex_);  // Null: there is none.
  std::vector<RecordedGroup> groups_ TITAN_GUARDED_BY(mutex_);
  std::map<std::tuple<int, int, int>, int> ways_ TITAN_GUARDED_BY(mutex_);  // (group, source, destination) -> its own.
  std::vector<Recording> ring_ TITAN_GUARDED_BY(mutex_);                    // Number n lies at n % capacity_.
  int64_t next_ TITAN_GUARDED_BY(mutex_) = 0;
  int64_t mark_ TITAN_GUARDED_BY(mutex_) = 0;
  int64_t marked_at_ TITAN_GUARDED_BY(mutex_) = 0;  // The first number since the mark.
  int64_t settled_ TITAN_GUARDED_BY(mutex_) = 0;    // All before it are completed, or written over.
};

}  // namespace titan::comm
