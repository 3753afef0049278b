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

// How far a trace that was asked for is.
enum class TraceState : uint32_t { kWaiting, kRecording, kWriting, kWritten, kFailed };

// A request for a trace of some steps, and the rank's answer. The rank looks at `request` at each step edge and at
// nothing else; a page of an older program has zeroes here.
struct TraceWords {
  // The node's daemon writes these, `request` last.
  std::atomic<int64_t> first_step;  // Not before this one.
  std::atomic<int64_t> steps;
  std::atomic<uint64_t> request;  // A number of its own for each request; 0: none yet.
  // The rank writes these.
  std::atomic<uint32_t> takes_requests;  // 1 once the rank looks for them; never, where another rank has the profiler.
  std::atomic<uint32_t> state;           // Of the request `taken`.
  std::atomic<uint64_t> taken;
  std::atomic<int64_t> recorded_first, recorded_last;  // Known from kRecording on; the end may come sooner.
};

// One page of memory shared by a rank (writer) and its node's daemon and shim (readers), in a file of the run folder.
// Plain atomics: a killed writer leaves it readable. The node's shim writes the two members of commands, its daemon the
// request of a trace, and neither anything else.
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
  // 0 none, 1 save now, 2 stop at a step edge and save first. The rank has taken the command when it
  // wrote the same value to command_seen; to ask for another save, the shim clears command_seen.
  std::atomic<uint32_t> command;
  std::atomic<uint32_t> command_seen;  // The rank's acknowledgement of the last command.
  TraceWords trace;
  // Steps of which the rank has measured its own part, and the sum of these parts: the step's time without what it
  // waited for other ranks. Zeroes: it measures none, or its program is older. `own_steps` is written last.
  std::atomic<int64_t> own_nanos;
  std::atomic<int64_t> own_steps;
  // The rank writes 1 to the first when a collective has failed it and it wants to be looked at before it leaves; the
  // shim answers with 1 in the second once it is known where the threads of all its ranks are.
  std::atomic<uint32_t> stacks_wanted;
  std::atomic<uint32_t> stacks_taken;
};

enum class Command : uint32_t { kNone = 0, kCheckpoint = 1, kStopAndSave = 2 };

// The rank's side: makes or replaces the file and maps it. Unmapped on destruction.
class Beacon {
 public:
  static absl::StatusOr<std::unique_ptr<Beacon>> create(const std::string& path, int rank);
  ~Beacon();
  Beacon(const Beacon&) = delete;
  Beacon& operator=(const Beacon&) = delete;

  BeaconPage& page() { return *page_; }
  const BeaconPage& page() const { return *page_; }

  // Notes the time spent in the previous phase and bumps the counter.
  void enter(Phase phase);
  // The time in a phase so far, that of the phase which goes on included.
  absl::Duration time_in(Phase phase) const;

 private:
  explicit Beacon(BeaconPage* page) : page_(page) {}
  BeaconPage* page_;
};

// The node's side. It copies the page instead of mapping it: whoever maps a file dies (SIGBUS) when its owner makes it
// shorter, and the owner is a user's program.
class BeaconReader {
 public:
  // Errors: NotFound, DataLoss for what is no beacon, FailedPrecondition for one of a newer version.
  static absl::StatusOr<std::unique_ptr<BeaconReader>> open(const std::string& path);
  ~BeaconReader();
  BeaconReader(const BeaconReader&) = delete;
  BeaconReader& operator=(const BeaconReader&) = delete;

  // Takes a new copy. Each word is one that the rank has written; two words may be of different moments.
  // Errors: DataLoss when it is no beacon any more; the copy is then the last good one.
  absl::Status look();
  const BeaconPage& page() const { return page_; }
  // Writes one word of page(), in the copy too. The rank sees writes in their order.
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
