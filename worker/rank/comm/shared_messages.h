#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "worker/rank/comm/shared_area.h"

namespace titan::comm {

// A message between this rank and one other member of its group.
struct SharedMessage {
  bool sends = false;  // Otherwise this rank receives it.
  int peer = 0;
  int tag = 0;
  // [...], contiguous, on the CPU: the source or the destination. Released when the message is done.
  at::Tensor tensor;

  // Set by SharedMessages.
  int64_t moved = 0;  // Bytes copied to slots or to the tensor.
  uint32_t end = 0;   // For a message that is completely in slots: the channel's count after its last slot.
  bool done = false;
};

// The messages between one rank and the others of its group that are processes of this machine. Each ordered pair of
// ranks has a channel of kMessageSlots slots in the sender's area, so no pair waits for another pair or for
// collectives. Messages pass through it in the order of sending, in pieces of a slot. post() never waits: data without
// a free slot is published later, by advance().
//
// An arriving message goes to the oldest receive with its tag. A message that no receive matches stays in its slots,
// unless this rank has posted another receive from the same sender: the matching message may come later, so the first
// one is moved to separate memory. So every posted receive gets its message once it is sent, in any order of tags.
// Memory is bounded on both sides: kMessageSlots * kSlotBytes = 32 MiB per channel, of which only used pages take
// memory, and the messages that peers have sent and this rank has not yet posted a receive for.
//
// A receive is done when its message is there; a send is done when the receiver has read (or set aside) all of it. If
// sizes or types disagree, both sides get an error and no byte is written. Not thread-safe: the callers lock.
class SharedMessages {
 public:
  // `own` and `peers` (null at `rank`) belong to the group and must outlive this object.
  SharedMessages(int rank, OwnArea& own, const std::vector<std::unique_ptr<PeerArea>>& peers);

  // Posts a send or a receive. Never waits.
  void post(std::shared_ptr<SharedMessage> message);
  // Moves one piece to and from each peer, if that is possible without waiting. Returns whether something moved.
  bool advance();
  // Returns whether a posted message is not completely in slots yet.
  bool has_more_to_send() const;
  // Names both ranks and sizes if a sender and a receiver disagree about a message; otherwise empty.
  const std::string& disagreement() const { return disagreement_; }
  // Drops all incomplete messages.
  void forget();

 private:
  // A message that arrived before its receive was posted.
  struct Early {
    std::shared_ptr<SharedMessage> held;   // Holds the data.
    std::shared_ptr<SharedMessage> asked;  // The receive, if it was posted since.
  };

  // State for one peer.
  struct Channel {
    std::deque<std::shared_ptr<SharedMessage>> to_send;  // Not completely in slots.
    std::deque<std::shared_ptr<SharedMessage>> unread;   // Not completely read.
    uint32_t published = 0;
    uint32_t next_slot = 0;

    std::deque<std::shared_ptr<SharedMessage>> expected;  // Receives for which nothing has arrived.
    std::shared_ptr<SharedMessage> incoming;              // The receive that is being filled.
    std::deque<Early> early;                              // In the order of sending.
    uint32_t read = 0;
  };

  bool publish_piece(int peer);
  bool complete_read_sends(int peer);
  bool check_refusal(int peer);
  bool read_piece(int peer);
  bool begin_reading(int peer, const MessageRecord& record);
  void end_reading(Channel& channel);
  bool take_early(Channel& channel, const std::shared_ptr<SharedMessage>& asked);
  void deliver(const Early& early);
  void refuse(int peer, const MessageRecord& sent, const SharedMessage& asked);

  const int rank_;
  OwnArea& own_;
  const std::vector<std::unique_ptr<PeerArea>>& peers_;
  std::vector<Channel> channels_;
  std::string disagreement_;
};

}  // namespace titan::comm
