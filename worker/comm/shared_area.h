#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace titan::comm {

// Memory of one rank that the other ranks of its group on this machine see too: slots in which it leaves data for them,
// and the counts by which they agree who may touch which slot. It has no name in any file system: peers open it through
// the owner's descriptors in /proc, so it is gone with the last process that has it.

inline constexpr int kMostMembers = 16;  // Of a group.
inline constexpr uint32_t kSlots = 64;   // Divides 2^32: counts may run over.
inline constexpr int64_t kSlotBytes = int64_t{128} << 10;

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

// The record of the n-th filled slot, n from 0, is records[n % kSlots].
struct AreaHeader {
  std::array<uint64_t, 2> token;                   // Tells the area from any other file.
  SharedCount published;                           // Slots that the owner has filled so far. It alone writes this.
  std::array<SharedCount, kMostMembers> consumed;  // Slots of each other rank that the owner has read. As above.
  SharedCount asleep;                              // 1: the owner sleeps, or is about to, until the bell changes.
  SharedCount bell;                                // Rung by the others: a futex.
  std::array<SlotRecord, kSlots> records;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// A file descriptor of this process, closed at the end.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }
  void close();
  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

// A mapped area: the header may be written to by all, the slots by the owner alone.
class AreaMapping {
 public:
  // Throws std::bad_alloc when it cannot be mapped.
  AreaMapping(int file, bool own);
  ~AreaMapping();
  AreaMapping(const AreaMapping&) = delete;
  AreaMapping& operator=(const AreaMapping&) = delete;

  AreaHeader& header() const { return *header_; }
  std::byte* slot(uint32_t index) const { return slots_ + index * kSlotBytes; }

 private:
  AreaHeader* header_;
  std::byte* slots_;
};

// This rank's area: kSlots * kSlotBytes = 8 MiB, of which only what was ever used takes memory.
class OwnArea {
 public:
  // Null where the kernel gives none.
  static std::unique_ptr<OwnArea> create();

  AreaMapping& memory() { return memory_; }
  // What a peer needs to open it.
  std::string invitation() const;
  // Nobody can open it from now on.
  void close_door();
  // The peers see that its owner is gone; so they do when the process ends.
  void leave() { alive_.close(); }

 private:
  OwnArea(Descriptor file, Descriptor sign, Descriptor alive);

  Descriptor file_;
  Descriptor sign_;   // The reading end of a pipe,
  Descriptor alive_;  // and the writing end, which nobody else has: it hangs up when this one closes.
  AreaMapping memory_;
};

// Another rank's.
class PeerArea {
 public:
  // Null when it is on another machine or cannot be seen from here.
  static std::unique_ptr<PeerArea> open(const std::string& invitation);

  AreaMapping& memory() { return memory_; }
  // Whether its owner has left or died. Asks the kernel; what the owner published before is there by then.
  bool is_gone() const;

 private:
  PeerArea(int file, Descriptor sign) : sign_(std::move(sign)), memory_(file, /*own=*/false) {}

  Descriptor sign_;
  AreaMapping memory_;
};

}  // namespace titan::comm
