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
  bool sends = false;  // Else this rank receives it.
  int peer = 0;
  int tag = 0;
  at::Tensor tensor;  // Contiguous, on the CPU: what is sent, or what is written to. Let go when it is done.

  // SharedMessages' own.
  int64_t moved = 0;  // Bytes that are in slots, or in the tensor.
  uint32_t end = 0;   // Of a message that is in slots as a whole: the channel's count behind it.
  bool done = false;
};

// The messages of one rank with the others of its group that are processes of this machine. Each ordered pair of ranks
// has a channel of kMessageSlots slots in the sender's area, so that no pair waits for another, nor for collectives.
// Messages go through it one after the other in the order of sending, in pieces of a slot; to post one never waits:
// what finds no slot goes out later, when advance() is called.
//
// A message that arrives is the oldest receive's with its tag. One that nobody has asked for stays in its slots, unless
// this rank has asked the sender for another one: that may be behind it, so it is set aside then, in memory of its own
// until it is asked for. So every receive that is posted gets its message once that is sent, whatever order the tags
// come in; and the memory of both ends is bounded: kMessageSlots * kSlotBytes = 32 MiB a channel, of which only what
// was ever used at a time takes memory, and what is set aside, at most what the peers have sent and this rank has not
// asked for.
//
// A receive is done when its message is there, a send when the receiver has read it all (or set it aside). Where their
// sizes or types disagree both sides are told, and no byte is written. The callers order the calls: no lock of its own.
class SharedMessages {
 public:
  // `own` and `peers` (null at `rank`) are the group's, and must outlive this.
  SharedMessages(int rank, OwnArea& own, const std::vector<std::unique_ptr<PeerArea>>& peers);

  void post(std::shared_ptr<SharedMessage> message);
  // Moves a piece to and from each peer, as far as that needs no waiting. Whether something went on.
  bool advance();
  // Whether something that was posted is not in slots yet.
  bool has_more_to_send() const;
  // Set once a sender and a receiver disagree about a message: who, and what both say.
  const std::string& disagreement() const { return disagreement_; }
  // Gives all up that is not done.
  void forget();

 private:
  // A message that came before it was asked for.
  struct Early {
    std::shared_ptr<SharedMessage> held;   // Where it is kept.
    std::shared_ptr<SharedMessage> asked;  // Who asked for it since.
  };

  // Of one peer.
  struct Channel {
    std::deque<std::shared_ptr<SharedMessage>> to_send;  // Not in slots as a whole.
    std::deque<std::shared_ptr<SharedMessage>> unread;   // Not read as a whole.
    uint32_t published = 0;
    uint32_t next_slot = 0;

    std::deque<std::shared_ptr<SharedMessage>> expected;  // Of which nothing has come.
    std::shared_ptr<SharedMessage> incoming;              // Of which something has.
    std::deque<Early> early;                              // In the order of sending.
    uint32_t read = 0;
  };

  bool publish_piece(int peer);
  bool notice_what_is_read(int peer);
  bool hear_refusal(int peer);
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
