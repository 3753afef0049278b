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

// What one rank gives to a collective and takes from it.
struct SharedOperation {
  // Of this rank for, or for this rank from, one member of the group.
  struct Part {
    std::byte* memory = nullptr;
    int64_t bytes = 0;
  };

  SharedKind kind = SharedKind::kBarrier;
  at::ScalarType type = at::kByte;
  std::vector<at::Tensor> tensors;  // Whose memory the parts are: kept until it is done.

  bool sends = true;
  bool same_for_all = false;   // Every member reads the same part: sent[i] are all equal.
  std::vector<Part> sent;      // By member; what it has for itself does not count.
  std::vector<bool> receives;  // From whom; never from itself.
  std::vector<Part> received;  // By member.
  // The parts that come are combined (shared_sum.h) with the own one into `result`; of `received` only the sizes count.
  bool reduces = false;
  c10d::ReduceOp::RedOpType reduction = c10d::ReduceOp::SUM;
  std::byte* own = nullptr;
  std::byte* result = nullptr;

  // The group's own.
  uint64_t number = 0;
  int64_t stretches = 0;       // So many slots this rank's part fills,
  int64_t published = 0;       // of which so many are out.
  std::vector<int64_t> taken;  // Slots that were read, by member.
  bool done = false;
};

class SharedMemoryGroups;

// The collectives and messages of one group whose ranks are processes of this machine, without threads of their own: a
// rank copies what the others need into its slots when it issues an operation and whenever it waits for one, and copies
// or adds what they have left in theirs when it waits. Operations run in the order of issue.
//
// To issue never waits: what finds no free slot goes out later. A slot is free when all others have read it. Nothing
// stands still for ever if the ranks wait for the group's operations in an order that they could with blocking ones:
// - A wait ends when the same operation and those before it are published by the others, as far as they send to this
//   rank. A rank that waits publishes and reads all the time, so ranks that wait for operations of one group, each for
//   another one, all go on: the first operation that is not done anywhere always can, since its readers are those that
//   wait for it or for a later one.
// - A rank that waits for another group moves this one on as well (SharedMemoryGroups). A rank that computes, or waits
//   at a socket, does not: what it has published by then is there, at least kSlots * kSlotBytes of what it issued, and
//   the rest when it waits for that operation itself.
// Messages (shared_messages.h) are no part of that order: they go on beside it, whatever the rank waits for.
// After an error the group is unusable. Thread-safe; a thread that waits does not keep others from issuing.
class SharedMemoryGroup {
 public:
  // `peers` by member; null at `rank`.
  SharedMemoryGroup(int rank, std::unique_ptr<OwnArea> own, std::vector<std::unique_ptr<PeerArea>> peers);
  ~SharedMemoryGroup() { leave(); }

  // Nothing may write to what the operation sends, or touch what it receives, before it is done. Throws like wait()
  // when the group is unusable.
  std::shared_ptr<SharedOperation> issue(SharedOperation operation);
  std::shared_ptr<SharedMessage> issue(SharedMessage message);
  // Does what can be done without waiting.
  bool done(const SharedOperation& operation) { return is_done(operation.done); }
  bool done(const SharedMessage& message) { return is_done(message.done); }
  // Returns once the operation is done. Throws c10::DistBackendError for a rank that is gone, or took no part within
  // the timeout, or when this one gave up; c10::ValueError where ranks disagree about what they do. `groups`, those of
  // this rank, go on meanwhile.
  void wait(const SharedOperation& operation, std::chrono::milliseconds timeout, SharedMemoryGroups& groups) {
    wait_until(operation.done, /*message_peer=*/-1, timeout, groups);
  }
  void wait(const SharedMessage& message, std::chrono::milliseconds timeout, SharedMemoryGroups& groups) {
    wait_until(message.done, message.peer, timeout, groups);
  }

  // Ends this rank's waits, now and from now on, and the others' for it. From any thread.
  void abort();
  // The rank takes no further part.
  void leave();
  // Does what can be done without waiting, unless somebody is at it. Whether there is more to send, which needs slots.
  bool help();

 private:
  struct Trouble {
    std::string why;
    bool disagreement = false;
  };

  bool is_done(const bool& done);
  // `message_peer`: with whom the message is that `done` is of; -1: of a collective.
  void wait_until(const bool& done, int message_peer, std::chrono::milliseconds timeout, SharedMemoryGroups& groups);
  void check_usable() TITAN_REQUIRES(mutex_);
  void fail(Trouble trouble) TITAN_REQUIRES(mutex_);
  bool advance() TITAN_REQUIRES(mutex_);
  void check_messages() TITAN_REQUIRES(mutex_);
  bool publish_one() TITAN_REQUIRES(mutex_);
  bool read_one() TITAN_REQUIRES(mutex_);
  bool reduce_one(SharedOperation& operation) TITAN_REQUIRES(mutex_);
  bool finish_front() TITAN_REQUIRES(mutex_);
  bool look_around() TITAN_REQUIRES(mutex_);
  bool sleep(std::chrono::milliseconds longest) TITAN_REQUIRES(mutex_);

  int size() const { return static_cast<int>(peers_.size()); }
  int64_t stretch_of(const SharedOperation& operation) const;
  std::byte* place(std::byte* slot, const SharedOperation& operation, int writer, int reader) const;
  bool has_record(int peer) const TITAN_REQUIRES(mutex_);
  const SlotRecord* record_of(const SharedOperation& operation, int peer) TITAN_REQUIRES(mutex_);
  void consume(SharedOperation& operation, int peer, bool last) TITAN_REQUIRES(mutex_);
  uint32_t filled() const TITAN_REQUIRES(mutex_);
  bool blocked_by(int peer) const TITAN_REQUIRES(mutex_);
  bool needs(int peer) const TITAN_REQUIRES(mutex_);
  void fail_for_the_missing(int message_peer, const std::string& what) TITAN_REQUIRES(mutex_);
  void notice_the_gone(const bool& done, int message_peer) TITAN_REQUIRES(mutex_);
  void ring_others() TITAN_REQUIRES(mutex_);

  const int rank_;
  std::once_flag left_;
  const std::unique_ptr<OwnArea> own_;
  const std::vector<std::unique_ptr<PeerArea>> peers_;
  std::atomic<bool> aborted_{false};
  sync::Mutex mutex_;
  Trouble broken_ TITAN_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<SharedOperation>> queue_ TITAN_GUARDED_BY(mutex_);  // Not done, in the order of issue.
  SharedMessages messages_ TITAN_GUARDED_BY(mutex_);
  uint64_t next_number_ TITAN_GUARDED_BY(mutex_) = 0;
  uint32_t published_ TITAN_GUARDED_BY(mutex_) = 0;
  uint32_t next_slot_ TITAN_GUARDED_BY(mutex_) = 0;
  std::vector<uint32_t> consumed_ TITAN_GUARDED_BY(mutex_);  // Of each peer's slots.
};

// The groups of one rank.
class SharedMemoryGroups {
 public:
  void add(const std::shared_ptr<SharedMemoryGroup>& group);
  // Moves all on but `waiting`. Whether one of them has more to send.
  bool help_others(const SharedMemoryGroup& waiting);

 private:
  sync::Mutex mutex_;
  std::vector<std::weak_ptr<SharedMemoryGroup>> groups_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::comm
