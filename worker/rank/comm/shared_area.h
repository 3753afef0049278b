#pragma once

// Memory that ranks of one machine share. Each rank has an area that the other ranks of its group on this machine also
// map. It has slots for collectives, slots for messages to each other rank, counters that show who may access which
// slot, and a futex ("bell") that wakes the owner, so that no rank has to poll. An area has no name in a file system:
// peers open it through the owner's descriptors in /proc, so it disappears with the last process that uses it.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/host/descriptor.h"

namespace titan::comm {

inline constexpr int kMaxMembers = 16;  // Members of a group.
inline constexpr uint32_t kSlots = 64;  // Divides 2^32, because counts may overflow.
inline constexpr int64_t kSlotBytes = int64_t{128} << 10;
inline constexpr uint32_t kMessageSlots = 256;  // Per receiving rank. Divides 2^32.

// Describes a filled slot: one piece of a rank's part of an operation.
struct SlotRecord {
  uint64_t operation;  // Number of the operation in the group, from 0.
  uint32_t call;       // Kind, reduction and type of the operation; the same on all ranks.
  uint32_t slot;
  bool last;                               // The last slot of this operation.
  std::array<int64_t, kMaxMembers> bytes;  // Total bytes of this rank for each reader in this operation.
};

struct alignas(64) SharedCount {
  std::atomic<uint32_t> value;
};

// Describes a filled slot of a channel: the next piece of a message. All pieces except the last fill their slot.
struct MessageRecord {
  int64_t bytes;  // Size of the whole message.
  int32_t tag;
  uint32_t type;  // at::ScalarType
  uint32_t slot;  // Index in the channel.
};

// Messages to one other rank, in the order of sending. The record of the n-th filled slot is records[n %
// kMessageSlots].
struct MessageChannel {
  SharedCount published;  // Number of slots that the owner has filled. Only the owner writes this struct.
  std::array<MessageRecord, kMessageSlots> records;
};

// Why a message was not accepted.
struct MessageRefusal {
  SharedCount given;  // 1: the other fields are valid.
  MessageRecord sent;
  int64_t bytes;  // Size that the receiver expects.
  uint32_t type;
};

// The record of the n-th filled slot, n from 0, is records[n % kSlots].
struct AreaHeader {
  std::array<uint64_t, 2> token;  // Distinguishes the area from any other file.
  SharedCount published;          // Number of slots that the owner has filled. Only the owner writes it.
  // Number of each other rank's slots that the owner has read. Only the owner writes it.
  std::array<SharedCount, kMaxMembers> consumed;
  SharedCount asleep;  // Number of the owner's threads that sleep on the bell or are about to.
  SharedCount bell;    // A futex that the other ranks change.
  std::array<SlotRecord, kSlots> records;

  std::array<MessageChannel, kMaxMembers> channels;  // One per other rank.
  // Number of slots that the owner has read from each other rank's channel, and its refusals. Only the owner writes
  // them.
  std::array<SharedCount, kMaxMembers> messages_read;
  std::array<MessageRefusal, kMaxMembers> refusals;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// A mapped area. All ranks may write to the header, only the owner to the slots.
class AreaMapping {
 public:
  // Also maps the owner's channels to `channels` ranks, starting at rank `first_channel`. Throws std::bad_alloc if it
  // cannot be mapped.
  AreaMapping(int file, bool own, int first_channel, int channels);
  ~AreaMapping() { close(); }
  AreaMapping(const AreaMapping&) = delete;
  AreaMapping& operator=(const AreaMapping&) = delete;

  AreaHeader& header() const { return *header_; }
  std::byte* slot(uint32_t index) const { return slots_ + index * kSlotBytes; }
  // A slot of the channel to `reader`, which must be mapped.
  std::byte* message_slot(int reader, uint32_t index) const {
    return messages_ + (int64_t{reader - first_channel_} * kMessageSlots + index) * kSlotBytes;
  }

 private:
  void close();

  const int first_channel_;
  const size_t messages_bytes_;
  AreaHeader* header_ = nullptr;
  std::byte* slots_ = nullptr;
  std::byte* messages_ = nullptr;
};

// This rank's area: kSlots * kSlotBytes = 8 MiB for collectives and kMessageSlots * kSlotBytes = 32 MiB for messages to
// each other rank. Only pages that were used take memory.
class OwnArea {
 public:
  // Creates an area for a group of at most kMaxMembers ranks. Null if the kernel does not provide the memory.
  static std::unique_ptr<OwnArea> create(int members);

  AreaMapping& memory() { return memory_; }
  // Returns the string with which a peer opens the area.
  std::string invitation() const;
  // From now on nobody can open the area.
  void forbid_opening();
  // Shows the peers that the owner is gone. The end of the process has the same effect.
  void leave() { alive_.reset(); }

 private:
  OwnArea(host::Descriptor file, host::Descriptor sign, host::Descriptor alive, int members);

  host::Descriptor file_;
  host::Descriptor sign_;   // Read end of a pipe.
  host::Descriptor alive_;  // Write end, which only the owner has: the pipe hangs up when it closes.
  AreaMapping memory_;
};

// Another rank's area.
class PeerArea {
 public:
  // Opens the area as member `reader` of a group of `members`. Null if it is on another machine or cannot be opened.
  static std::unique_ptr<PeerArea> open(const std::string& invitation, int members, int reader);

  AreaMapping& memory() { return memory_; }
  // Returns whether the owner has left or died. If so, everything that it published before is visible to the caller.
  bool is_gone() const;

 private:
  PeerArea(int file, host::Descriptor sign, int reader)
      : sign_(std::move(sign)), memory_(file, /*own=*/false, /*first_channel=*/reader, /*channels=*/1) {}

  host::Descriptor sign_;
  AreaMapping memory_;
};

// Wakes the owner of the area, or keeps it from falling asleep.
void ring(AreaHeader& header);

// Same, if the owner sleeps or is about to. Store the data that it must see before this call: either this call sees
// that it sleeps, or the owner sees the data when it checks once more after constructing Sleep.
void ring_if_asleep(AreaHeader& header);

// The owner's sleep, on one of its threads.
class Sleep {
 public:
  // Rings after this end the sleep. Check the awaited condition once more after this.
  explicit Sleep(AreaHeader& header);
  ~Sleep() { header_.asleep.value.fetch_sub(1); }
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;

  // Returns after the next ring, or after this time.
  void until_rung(std::chrono::milliseconds longest);
  bool rung() const { return header_.bell.value.load() != bell_; }

 private:
  AreaHeader& header_;
  const uint32_t bell_;
};

}  // namespace titan::comm
