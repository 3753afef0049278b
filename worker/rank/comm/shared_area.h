#pragma once

// The memory that ranks of one machine share: each rank has an area that the other ranks of its group on this machine
// map too. It has slots in which the rank leaves data for them, those for collectives and, for each other rank, those
// for messages; the counts by which they agree who may touch which slot; and a bell, by which they wake its owner, so
// that no rank has to poll. An area has no name in any file system: peers open it through the owner's descriptors in
// /proc, so it is gone with the last process that has it.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/host/descriptor.h"

namespace titan::comm {

inline constexpr int kMostMembers = 16;  // Of a group.
inline constexpr uint32_t kSlots = 64;   // Divides 2^32: counts may run over.
inline constexpr int64_t kSlotBytes = int64_t{128} << 10;
inline constexpr uint32_t kMessageSlots = 256;  // Of a rank for each other one. Divides 2^32.

// What a filled slot holds: a stretch of one rank's part of an operation.
struct SlotRecord {
  uint64_t operation;  // Its number in the group, from 0.
  uint32_t call;       // Which operation on which type; the same on all ranks.
  uint32_t slot;
  bool last;                                // Of this operation.
  std::array<int64_t, kMostMembers> bytes;  // All that this rank has for each reader in this operation.
};

struct alignas(64) SharedCount {
  std::atomic<uint32_t> value;
};

// What a slot of a channel holds: the next piece of a message. All but the last piece of a message fill their slot.
struct MessageRecord {
  int64_t bytes;  // Of the whole message.
  int32_t tag;
  uint32_t type;  // at::ScalarType
  uint32_t slot;  // Of the channel.
};

// Messages to one other rank, in the order of sending. The record of the n-th filled slot is records[n %
// kMessageSlots].
struct MessageChannel {
  SharedCount published;  // Slots that the owner has filled so far. It alone writes here.
  std::array<MessageRecord, kMessageSlots> records;
};

// Why a message was not taken.
struct MessageRefusal {
  SharedCount given;  // 1: the rest is there.
  MessageRecord sent;
  int64_t bytes;  // What its receiver expects.
  uint32_t type;
};

// The record of the n-th filled slot, n from 0, is records[n % kSlots].
struct AreaHeader {
  std::array<uint64_t, 2> token;                   // Tells the area from any other file.
  SharedCount published;                           // Slots that the owner has filled so far. It alone writes this.
  std::array<SharedCount, kMostMembers> consumed;  // Slots of each other rank that the owner has read. As above.
  SharedCount asleep;  // So many of its threads sleep until the bell changes, or are about to.
  SharedCount bell;    // Rung by the others: a futex.
  std::array<SlotRecord, kSlots> records;

  std::array<MessageChannel, kMostMembers> channels;  // To each other rank.
  // Slots of each other rank's channel to the owner that it has read, and its refusals. It alone writes them.
  std::array<SharedCount, kMostMembers> messages_read;
  std::array<MessageRefusal, kMostMembers> refusals;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// A mapped area: the header may be written to by all, the slots by the owner alone.
class AreaMapping {
 public:
  // With the owner's channels to `channels` ranks from `first_channel` on. Throws std::bad_alloc when it cannot be
  // mapped.
  AreaMapping(int file, bool own, int first_channel, int channels);
  ~AreaMapping() { close(); }
  AreaMapping(const AreaMapping&) = delete;
  AreaMapping& operator=(const AreaMapping&) = delete;

  AreaHeader& header() const { return *header_; }
  std::byte* slot(uint32_t index) const { return slots_ + index * kSlotBytes; }
  // Of the channel to `reader`, which must be mapped.
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
// each other rank, of which only what was ever used takes memory.
class OwnArea {
 public:
  // For a group of so many ranks, kMostMembers at most. Null where the kernel gives none.
  static std::unique_ptr<OwnArea> create(int members);

  AreaMapping& memory() { return memory_; }
  // What a peer needs to open it.
  std::string invitation() const;
  // Nobody can open it from now on.
  void close_door();
  // The peers see that its owner is gone; so they do when the process ends.
  void leave() { alive_.reset(); }

 private:
  OwnArea(host::Descriptor file, host::Descriptor sign, host::Descriptor alive, int members);

  host::Descriptor file_;
  host::Descriptor sign_;   // The reading end of a pipe,
  host::Descriptor alive_;  // and the writing end, which nobody else has: it hangs up when this one closes.
  AreaMapping memory_;
};

// Another rank's area.
class PeerArea {
 public:
  // As member `reader` of a group of `members`. Null when it is on another machine or cannot be seen from here.
  static std::unique_ptr<PeerArea> open(const std::string& invitation, int members, int reader);

  AreaMapping& memory() { return memory_; }
  // Whether its owner has left or died. Asks the kernel; what the owner published before is there by then.
  bool is_gone() const;

 private:
  PeerArea(int file, host::Descriptor sign, int reader)
      : sign_(std::move(sign)), memory_(file, /*own=*/false, /*first_channel=*/reader, /*channels=*/1) {}

  host::Descriptor sign_;
  AreaMapping memory_;
};

// Wakes the owner of the area by its bell, or keeps it from falling asleep.
void ring(AreaHeader& header);

// The same if it sleeps or is about to. What it is to see must have been stored before: either this sees that it
// sleeps, or the owner sees that when it looks once more after Sleep has begun.
void ring_if_asleep(AreaHeader& header);

// The owner's sleep, on one of its threads.
class Sleep {
 public:
  // From here on rings count: what is to be waited for must be looked at once more after this.
  explicit Sleep(AreaHeader& header);
  ~Sleep() { header_.asleep.value.fetch_sub(1); }
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;

  // Returns after the next ring, or this long.
  void until_rung(std::chrono::milliseconds longest);
  bool rung() const { return header_.bell.value.load() != bell_; }

 private:
  AreaHeader& header_;
  const uint32_t bell_;
};

}  // namespace titan::comm
