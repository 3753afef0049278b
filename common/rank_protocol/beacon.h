#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace titan::rank_protocol {

enum class Phase : uint32_t {
  kInit,
  kRendezvous,
  kBuild,
  kLoad,
  kData,
  kForward,
  kBackward,
  kOptimizer,
  kCheckpoint,
  kValidate,
  kExit
};
const char* name(Phase phase);

// Progress of a requested trace.
enum class TraceState : uint32_t { kWaiting, kRecording, kWriting, kWritten, kFailed };

// A request to trace some steps, and the rank's answer. The rank polls only `request`, at each step edge. A page of an
// older program has zeroes here.
struct TraceRequest {
  // The node's daemon writes these, `request` last.
  std::atomic<int64_t> first_step;  // Earliest step to trace.
  std::atomic<int64_t> steps;
  std::atomic<uint64_t> request;  // A different number for each request; 0: none yet.
  // The rank writes these.
  std::atomic<uint32_t> takes_requests;  // 1 once the rank polls for requests; stays 0 if another rank of the same
                                         // process has the profiler.
  std::atomic<uint32_t> state;           // TraceState of the request `taken`.
  std::atomic<uint64_t> taken;
  std::atomic<int64_t> recorded_first, recorded_last;  // Valid for the request `taken`; recorded_last shrinks if
                                                       // recording ends sooner.
};

// One page of memory in a file of the run folder, written by a rank and read by its node's daemon and shim. It consists
// of plain atomics, so it stays readable when its writer is killed. The shim writes only the two command members and
// `stacks_taken`, the daemon only the trace request.
struct alignas(64) BeaconPage {
  uint64_t magic;  // Last member written at creation.
  uint32_t version;
  uint32_t rank;
  std::atomic<int64_t> pid;
  std::atomic<int64_t> step;  // Finished optimizer steps.
  std::atomic<uint32_t> phase;
  std::atomic<int64_t> phase_since;  // CLOCK_MONOTONIC nanoseconds.
  std::atomic<int64_t> microbatch;
  std::atomic<int64_t> collective_seq;   // Collectives issued so far.
  std::atomic<uint64_t> counter;         // Grows with any progress.
  std::atomic<int64_t> step_nanos;       // Last step's duration.
  std::atomic<int64_t> phase_nanos[16];  // Total time by phase.
  // A BeaconCommand: 0 none, 1 save now, 2 stop at a step edge and save first. The rank acknowledges by writing the
  // same value to command_seen. To request another save, the shim clears command_seen.
  std::atomic<uint32_t> command;
  std::atomic<uint32_t> command_seen;  // Last command that the rank has acknowledged.
  TraceRequest trace;
  // `own_steps` counts the steps whose own time the rank has measured; `own_nanos` is the sum of these times. A step's
  // own time excludes waits for other ranks. Both are 0 when the rank measures none or its program is older.
  // `own_steps` is written last.
  std::atomic<int64_t> own_nanos;
  std::atomic<int64_t> own_steps;
  // A rank whose collective failed sets stacks_wanted to 1 and waits before it exits. The shim sets stacks_taken to 1
  // once it has the thread stacks of all its ranks.
  std::atomic<uint32_t> stacks_wanted;
  std::atomic<uint32_t> stacks_taken;
};

enum class BeaconCommand : uint32_t { kNone = 0, kCheckpoint = 1, kStopAndSave = 2 };

// The rank's side: creates or replaces the file and maps it until destruction. Errors: those of create_page_file().
class Beacon {
 public:
  static absl::StatusOr<std::unique_ptr<Beacon>> create(const std::string& path, int rank);
  ~Beacon();
  Beacon(const Beacon&) = delete;
  Beacon& operator=(const Beacon&) = delete;

  BeaconPage& page() { return *page_; }
  const BeaconPage& page() const { return *page_; }

  // Begins a phase: adds the time spent in the previous phase to its total and increments the counter.
  void enter(Phase phase);
  // Returns the total time spent in a phase, including the current stay.
  absl::Duration time_in(Phase phase) const;

 private:
  explicit Beacon(BeaconPage* page) : page_(page) {}
  BeaconPage* page_;
};

// The node's side. It copies the page instead of mapping it: the rank runs user code and may shorten the file, which
// would kill a process that maps it (SIGBUS).
class BeaconReader {
 public:
  // Errors: those of open_rank_file(), DataLoss for a file that is not a beacon, FailedPrecondition for a newer
  // version.
  static absl::StatusOr<std::unique_ptr<BeaconReader>> open(const std::string& path);
  ~BeaconReader();
  BeaconReader(const BeaconReader&) = delete;
  BeaconReader& operator=(const BeaconReader&) = delete;

  // Copies the page again. Each word is whole, but two words may be from different moments.
  // Errors: those of open() and of reading; page() then keeps the last good copy.
  absl::Status look();
  const BeaconPage& page() const { return page_; }
  // Writes one word of page() to the file and to the copy. The rank sees writes in their order.
  template <typename T>
  absl::Status write(const std::atomic<T>& word, T value) {
    const auto offset = reinterpret_cast<const char*>(&word) - reinterpret_cast<const char*>(&page_);
    return write_bytes(&value, sizeof(value), offset);
  }

 private:
  BeaconReader(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  absl::Status write_bytes(const void* bytes, size_t count, int64_t offset);

  const int fd_;
  const std::string path_;
  BeaconPage page_{};
};

}  // namespace titan::rank_protocol
