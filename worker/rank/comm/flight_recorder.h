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

// Shape and type of a recorded tensor. With more than four dims the first ones are multiplied into one.
struct RecordedTensor {
  static constexpr int64_t kMaxDims = 4;

  std::array<int64_t, kMaxDims> sizes{};
  int8_t dims = 0;
  at::ScalarType type = at::kByte;

  RecordedTensor() = default;
  explicit RecordedTensor(const at::Tensor& tensor);  // `tensor`: any shape [...]. Undefined: no dims.
};

enum class CollectiveState : uint8_t {
  kScheduled,  // Being issued to the backend.
  kStarted,    // Issued.
  kCompleted,  // This rank's wait for it has returned and the result is there.
};

// One collective or message of a group.
struct Recording {
  int64_t number = -1;  // Number among all calls of this rank.
  // Position in the program: the number of synchronizations of all ranks so far, and the number of calls since. `mark`
  // means the same on every rank.
  int64_t mark = 0;
  int64_t since_mark = 0;
  int group = 0;
  int64_t sequence = 0;  // Number on its group, from 1; the same on all ranks of the group.
  const char* operation = "";
  RecordedTensor input;
  RecordedTensor output;
  std::chrono::milliseconds timeout{};
  int64_t created_ns = 0;  // Since the epoch. 0: not yet.
  int64_t started_ns = 0;
  int64_t completed_ns = 0;
  CollectiveState progress = CollectiveState::kScheduled;
  bool waited = false;  // The wait has returned; the device may still execute it.
};

// The participants. Messages from one rank to another form a separate group: they arrive in the order in which they are
// sent, so a sequence number means the same on both sides.
struct RecordedGroup {
  std::string name;
  std::string description;
  std::vector<int> ranks;  // Global ranks, ascending.
  int source = -1;         // For messages: an index into `ranks`. -1: collectives.
  int destination = -1;
  int64_t last_issued = 0;
  int64_t last_started = 0;
  int64_t last_completed = 0;

  bool messages() const { return source >= 0; }
};

// The contents of a recorder at one moment.
struct Flight {
  std::vector<RecordedGroup> groups;
  std::vector<Recording> recordings;  // In the order of issue.
};

// The newest collectives and messages of one rank, to diagnose hangs. A ring buffer: after the constructor only new
// groups allocate memory. Thread-safe; no lock is held during a collective.
class FlightRecorder {
 public:
  enum class Waits {
    kCompletesOnWait,  // After wait() the result is there (CPU).
    kCompletesOnSync,  // After wait() it is queued; the device has executed it by the next synchronized() (CUDA).
  };

  FlightRecorder(int64_t entries, Waits waits);
  ~FlightRecorder();

  // From now on also writes the newest calls to this file, which can be read when the rank hangs or has died. Must be
  // called before the first call is recorded.
  void attach(std::unique_ptr<rank_protocol::FlightTail> tail);

  // Returns the number of the new group.
  int add_group(std::string name, std::vector<int> ranks);

  // Records the issue of a collective and returns its number. `operation` is a string literal. `input` and `output`:
  // any shape [...].
  int64_t begin(int group, const char* operation, const at::Tensor& input, const at::Tensor& output,
                std::chrono::milliseconds timeout);
  // Records a message of `group` between two of its members, given by index. `tensor`: any shape [...].
  int64_t begin_message(int group, const char* operation, int source, int destination, const at::Tensor& tensor,
                        std::chrono::milliseconds timeout);
  void started(int64_t number);  // Call it when the backend has accepted the operation.
  void waiting(int64_t number);  // Call it before this rank waits for the operation.
  // Call it when this rank's wait has returned.
  void waited(int64_t number);

  // Call it when all ranks are at the same position of the program and the device has executed everything that this
  // rank waited for.
  void synchronized();

  // Returns the newest recordings. A section between two synchronized() calls whose beginning is overwritten is left
  // out, unless it is the last. So each rank's entries begin at a position that all ranks have in common, however many
  // calls each makes per step.
  Flight flight() const;

 private:
  // See begin(). `input` and `output`: any shape [...].
  int64_t add(int group, const char* operation, const at::Tensor& input, const at::Tensor& output,
              std::chrono::milliseconds timeout) TITAN_REQUIRES(mutex_);
  int p2p_channel(int group, int source, int destination) TITAN_REQUIRES(mutex_);
  // Returns null if the recording has been overwritten.
  Recording* find(int64_t number) TITAN_REQUIRES(mutex_);
  void complete(Recording& recording, int64_t now_ns) TITAN_REQUIRES(mutex_);
  int keep(RecordedGroup group) TITAN_REQUIRES(mutex_);
  void write_group(int number) TITAN_REQUIRES(mutex_);
  void write_call(const Recording& recording, int64_t elements) TITAN_REQUIRES(mutex_);
  void write_state(int64_t number, rank_protocol::CallState state) TITAN_REQUIRES(mutex_);

  struct Tail;

  const int64_t entries_;  // Number of entries that flight() returns.
  const Waits waits_;
  mutable sync::Mutex mutex_;
  int64_t capacity_ TITAN_GUARDED_BY(mutex_);            // At least entries_; more if the tail needs them.
  std::unique_ptr<Tail> tail_ TITAN_GUARDED_BY(mutex_);  // Null: none.
  std::vector<RecordedGroup> groups_ TITAN_GUARDED_BY(mutex_);
  // (group, source, destination) -> group of these messages.
  std::map<std::tuple<int, int, int>, int> p2p_channels_ TITAN_GUARDED_BY(mutex_);
  std::vector<Recording> ring_ TITAN_GUARDED_BY(mutex_);  // Number n is at n % capacity_.
  int64_t next_ TITAN_GUARDED_BY(mutex_) = 0;
  int64_t mark_ TITAN_GUARDED_BY(mutex_) = 0;
  int64_t marked_at_ TITAN_GUARDED_BY(mutex_) = 0;  // First number after the mark.
  int64_t settled_ TITAN_GUARDED_BY(mutex_) = 0;    // All earlier ones are completed or overwritten.
};

}  // namespace titan::comm
