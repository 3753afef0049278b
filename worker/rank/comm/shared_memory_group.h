#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "common/base/sync/sync.h"
#include "worker/rank/comm/shared_area.h"
#include "worker/rank/comm/shared_messages.h"

namespace titan::comm {

enum class SharedKind : uint8_t { kGather, kReduceScatter, kReduce, kExchange, kBroadcast, kBarrier };

// One rank's part of a collective.
struct SharedOperation {
  // Memory of this rank for one member of the group, or for data from it.
  struct Part {
    std::byte* memory = nullptr;
    int64_t bytes = 0;
  };

  SharedKind kind = SharedKind::kBarrier;
  at::ScalarType type = at::kByte;
  std::vector<at::Tensor> tensors;  // [...] each; own the memory of the parts until the operation is done.

  bool sends = true;
  bool same_for_all = false;   // Every member reads the same part: all sent[i] are equal.
  std::vector<Part> sent;      // By member; the rank's own entry is ignored.
  std::vector<bool> receives;  // By member; false for the rank itself.
  std::vector<Part> received;  // By member.
  // Received parts are combined with `own` into `result` (shared_sum.h). Only the sizes in `received` are used.
  bool reduces = false;
  c10d::ReduceOp::RedOpType reduction = c10d::ReduceOp::SUM;
  std::byte* own = nullptr;
  std::byte* result = nullptr;

  // Set by the group.
  uint64_t number = 0;
  int64_t stretches = 0;       // Number of slots that this rank's part fills.
  int64_t published = 0;       // Number of them that are published.
  std::vector<int64_t> taken;  // Number of slots read, by member.
  bool done = false;
};

class SharedMemoryGroups;

// The collectives and messages of one group whose ranks are processes of this machine. No extra threads: a rank
// copies data for the others into its slots when it issues an operation and whenever it waits, and it copies or adds
// the others' data when it waits. Operations run in the order of issue.
//
// Issuing never waits: data without a free slot is published later. A slot is free when all others have read it. The
// ranks do not deadlock if they wait for the group's operations in an order that would work with blocking operations:
// - A wait ends when the others have published this operation and the earlier ones, as far as they send to this rank. A
//   waiting rank keeps publishing and reading, so ranks that wait for different operations of one group all progress:
//   the oldest incomplete operation always can, because its readers wait for it or for a later one.
// - A rank that waits for another group also advances this one (SharedMemoryGroups). A rank that computes, or waits on
//   a socket, does not: at least kSlots * kSlotBytes of what it issued are published by then, and the rest follows when
//   it waits for that operation.
// Messages (shared_messages.h) are not part of that order: they progress whatever the rank waits for.
// After an error the group is unusable. Thread-safe; a waiting thread does not keep others from issuing.
class SharedMemoryGroup {
 public:
  // `peers`: by member; null at `rank`.
  SharedMemoryGroup(int rank, std::unique_ptr<OwnArea> own, std::vector<std::unique_ptr<PeerArea>> peers);
  ~SharedMemoryGroup() { leave(); }

  // Until the operation is done, nobody may write to what it sends or access what it receives. Throws like wait() if
  // the group is unusable.
  std::shared_ptr<SharedOperation> issue(SharedOperation operation);
  std::shared_ptr<SharedMessage> issue(SharedMessage message);
  // Does the work that is possible without waiting. Returns true if the operation is done or the group has failed.
  bool done(const SharedOperation& operation) { return is_done(operation.done); }
  bool done(const SharedMessage& message) { return is_done(message.done); }
  // Returns when the operation is done. Throws c10::DistBackendError if a rank is gone, took no part within the
  // timeout, or if this rank has aborted, and c10::ValueError if ranks disagree about the operation. `groups`, those of
  // this rank, progress meanwhile.
  void wait(const SharedOperation& operation, std::chrono::milliseconds timeout, SharedMemoryGroups& groups) {
    wait_until(operation.done, /*message_peer=*/-1, timeout, groups);
  }
  void wait(const SharedMessage& message, std::chrono::milliseconds timeout, SharedMemoryGroups& groups) {
    wait_until(message.done, message.peer, timeout, groups);
  }

  // Ends this rank's waits, now and later, and the others' waits for it. May be called from any thread.
  void abort();
  // Shows the other ranks that this one takes no further part.
  void leave();
  // Does the work that is possible without waiting, unless another thread does it. Returns whether there is more to
  // send, which needs free slots.
  bool help();

 private:
  struct Trouble {
    std::string why;
    bool disagreement = false;
  };

  bool is_done(const bool& done);
  // `message_peer`: peer of the message that `done` belongs to. -1: a collective.
  void wait_until(const bool& done, int message_peer, std::chrono::milliseconds timeout, SharedMemoryGroups& groups);
  void check_usable() TITAN_REQUIRES(mutex_);
  void fail(Trouble trouble) TITAN_REQUIRES(mutex_);
  bool advance() TITAN_REQUIRES(mutex_);
  void check_messages() TITAN_REQUIRES(mutex_);
  bool publish_one() TITAN_REQUIRES(mutex_);
  bool read_one() TITAN_REQUIRES(mutex_);
  bool reduce_one(SharedOperation& operation) TITAN_REQUIRES(mutex_);
  bool finish_front() TITAN_REQUIRES(mutex_);
  bool spin() TITAN_REQUIRES(mutex_);
  bool sleep(std::chrono::milliseconds longest) TITAN_REQUIRES(mutex_);

  int size() const { return static_cast<int>(peers_.size()); }
  int64_t stretch_of(const SharedOperation& operation) const;
  std::byte* place(std::byte* slot, const SharedOperation& operation, int writer, int reader) const;
  bool has_record(int peer) const TITAN_REQUIRES(mutex_);
  const SlotRecord* record_of(const SharedOperation& operation, int peer) TITAN_REQUIRES(mutex_);
  void consume(SharedOperation& operation, int peer, bool last) TITAN_REQUIRES(mutex_);
  uint32_t filled() const TITAN_REQUIRES(mutex_);
  bool needs(int peer) const TITAN_REQUIRES(mutex_);
  void fail_for_missing_peers(int message_peer, const std::string& what) TITAN_REQUIRES(mutex_);
  void check_lost_peers(const bool& done, int message_peer) TITAN_REQUIRES(mutex_);
  void ring_others() TITAN_REQUIRES(mutex_);

  const int rank_;
  std::once_flag left_;
  const std::unique_ptr<OwnArea> own_;
  const std::vector<std::unique_ptr<PeerArea>> peers_;
  std::atomic<bool> aborted_{false};
  sync::Mutex mutex_;
  Trouble broken_ TITAN_GUARDED_BY(mutex_);
  // Incomplete operations, in the order of issue.
  std::deque<std::shared_ptr<SharedOperation>> queue_ TITAN_GUARDED_BY(mutex_);
  SharedMessages messages_ TITAN_GUARDED_BY(mutex_);
  uint64_t next_number_ TITAN_GUARDED_BY(mutex_) = 0;
  uint32_t published_ TITAN_GUARDED_BY(mutex_) = 0;
  uint32_t next_slot_ TITAN_GUARDED_BY(mutex_) = 0;
  std::vector<uint32_t> consumed_ TITAN_GUARDED_BY(mutex_);  // By peer: slots that were read.
};

// The groups of one rank.
class SharedMemoryGroups {
 public:
  void add(const std::shared_ptr<SharedMemoryGroup>& group);
  // Advances all groups except `waiting`. Returns whether one of them has more to send.
  bool advance_others(const SharedMemoryGroup& waiting);

 private:
  sync::Mutex mutex_;
  std::vector<std::weak_ptr<SharedMemoryGroup>> groups_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::comm
