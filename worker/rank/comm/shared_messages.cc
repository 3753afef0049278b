#include "worker/rank/comm/shared_messages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "worker/rank/comm/point_to_point_backend.h"
#include "worker/rank/comm/shared_area.h"

namespace titan::comm {
namespace {

std::byte* memory_of(const SharedMessage& message) { return static_cast<std::byte*>(message.tensor.data_ptr()); }
int64_t bytes_of(const SharedMessage& message) { return static_cast<int64_t>(message.tensor.nbytes()); }
uint32_t type_of(const SharedMessage& message) { return static_cast<uint32_t>(message.tensor.scalar_type()); }

MessageRecord record_of(const SharedMessage& message, uint32_t slot) {
  return {.bytes = bytes_of(message), .tag = message.tag, .type = type_of(message), .slot = slot};
}

bool fits(const MessageRecord& sent, const SharedMessage& asked) {
  return sent.bytes == bytes_of(asked) && sent.type == type_of(asked);
}

std::string sized(int64_t bytes, uint32_t type) {
  return std::to_string(bytes) + " bytes of " + c10::toString(static_cast<at::ScalarType>(static_cast<int8_t>(type)));
}

// The same text on both sides.
std::string words(int sender, int receiver, const MessageRefusal& refusal) {
  return "rank " + std::to_string(sender) + " of the group sends " + sized(refusal.sent.bytes, refusal.sent.type) +
         " with tag " + std::to_string(refusal.sent.tag % kTagsOfSpace) + " but rank " + std::to_string(receiver) +
         " of the group receives " + sized(refusal.bytes, refusal.type);
}

// Returns whether `count` has reached `end`; counts may overflow.
bool reached(uint32_t count, uint32_t end) { return static_cast<int32_t>(count - end) >= 0; }

int64_t piece_of(const SharedMessage& message) { return std::min(kSlotBytes, bytes_of(message) - message.moved); }

void copy_piece(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

template <typename Messages>
auto first_with_tag(Messages& messages, int tag) {
  return std::ranges::find_if(messages, [tag](const auto& message) { return message->tag == tag; });
}

void finish(SharedMessage& message) {
  message.done = true;
  message.tensor.reset();
}

}  // namespace

SharedMessages::SharedMessages(int rank, OwnArea& own, const std::vector<std::unique_ptr<PeerArea>>& peers)
    : rank_(rank), own_(own), peers_(peers), channels_(peers.size()) {}

void SharedMessages::post(std::shared_ptr<SharedMessage> message) {
  const int peer = message->peer;
  Channel& channel = channels_[peer];
  if (message->sends) {
    channel.to_send.push_back(std::move(message));
    while (publish_piece(peer)) continue;
    return;
  }
  if (!take_early(channel, message)) channel.expected.push_back(std::move(message));
  while (disagreement_.empty() && read_piece(peer)) continue;
}

bool SharedMessages::advance() {
  bool moved = false;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (!peers_[peer] || !disagreement_.empty()) continue;
    moved |= check_refusal(peer);
    moved |= publish_piece(peer);
    moved |= complete_read_sends(peer);
    moved |= read_piece(peer);
  }
  return moved;
}

bool SharedMessages::has_more_to_send() const {
  return std::ranges::any_of(channels_, [](const Channel& channel) { return !channel.to_send.empty(); });
}

void SharedMessages::forget() {
  for (Channel& channel : channels_) {
    channel.to_send.clear();
    channel.unread.clear();
    channel.expected.clear();
    channel.incoming.reset();
    channel.early.clear();
  }
}

bool SharedMessages::publish_piece(int peer) {
  Channel& channel = channels_[peer];
  if (channel.to_send.empty()) return false;
  AreaHeader& theirs = peers_[peer]->memory().header();
  const uint32_t occupied = channel.published - theirs.messages_read[rank_].value.load(std::memory_order_acquire);
  if (occupied >= kMessageSlots) return false;
  if (occupied == 0) channel.next_slot = 0;  // Reuse the first pages, which are in the cache.
  SharedMessage& message = *channel.to_send.front();
  MessageChannel& shared = own_.memory().header().channels[peer];
  const uint32_t slot = std::exchange(channel.next_slot, (channel.next_slot + 1) % kMessageSlots);
  shared.records[channel.published % kMessageSlots] = record_of(message, slot);
  const int64_t bytes = piece_of(message);
  copy_piece(own_.memory().message_slot(peer, slot), memory_of(message) + message.moved, bytes);
  message.moved += bytes;
  shared.published.value.store(++channel.published, std::memory_order_release);
  ring_if_asleep(theirs);
  if (message.moved == bytes_of(message)) {
    message.end = channel.published;
    channel.unread.push_back(std::move(channel.to_send.front()));
    channel.to_send.pop_front();
  }
  return true;
}

bool SharedMessages::complete_read_sends(int peer) {
  Channel& channel = channels_[peer];
  if (channel.unread.empty()) return false;
  const auto& count = peers_[peer]->memory().header().messages_read[rank_].value;
  const uint32_t read = count.load(std::memory_order_acquire);
  bool noticed = false;
  while (!channel.unread.empty() && reached(read, channel.unread.front()->end)) {
    finish(*channel.unread.front());
    channel.unread.pop_front();
    noticed = true;
  }
  return noticed;
}

bool SharedMessages::check_refusal(int peer) {
  if (channels_[peer].published == 0) return false;
  const MessageRefusal& refusal = peers_[peer]->memory().header().refusals[rank_];
  if (refusal.given.value.load(std::memory_order_acquire) == 0) return false;
  disagreement_ = words(rank_, peer, refusal);
  return true;
}

// Rings the sender only when it may be asleep: all slots were full, or a message is read to its end.
bool SharedMessages::read_piece(int peer) {
  Channel& channel = channels_[peer];
  if (!channel.incoming && channel.expected.empty()) return false;
  AreaHeader& theirs = peers_[peer]->memory().header();
  const MessageChannel& shared = theirs.channels[rank_];
  const uint32_t filled = shared.published.value.load(std::memory_order_acquire) - channel.read;
  if (filled == 0) return false;
  const MessageRecord& record = shared.records[channel.read % kMessageSlots];
  if (!channel.incoming && !begin_reading(peer, record)) return true;
  SharedMessage& message = *channel.incoming;
  const int64_t bytes = piece_of(message);
  const std::byte* const slot = peers_[peer]->memory().message_slot(rank_, record.slot % kMessageSlots);
  copy_piece(memory_of(message) + message.moved, slot, bytes);
  message.moved += bytes;
  own_.memory().header().messages_read[peer].value.store(++channel.read, std::memory_order_release);
  const bool whole = message.moved == bytes_of(message);
  if (whole || filled == kMessageSlots) ring_if_asleep(theirs);
  if (whole) end_reading(channel);
  return true;
}

// Finds the destination of the message that begins with `record`. Returns false if the message does not fit.
bool SharedMessages::begin_reading(int peer, const MessageRecord& record) {
  Channel& channel = channels_[peer];
  const auto asked = first_with_tag(channel.expected, record.tag);
  if (asked == channel.expected.end()) {
    auto held = std::make_shared<SharedMessage>(SharedMessage{.peer = peer, .tag = record.tag});
    const auto type = static_cast<at::ScalarType>(static_cast<int8_t>(record.type));
    held->tensor = at::empty({record.bytes / static_cast<int64_t>(c10::elementSize(type))}, type);
    channel.early.push_back({.held = held, .asked = nullptr});
    channel.incoming = std::move(held);
    return true;
  }
  if (!fits(record, **asked)) {
    refuse(peer, record, **asked);
    return false;
  }
  channel.incoming = std::move(*asked);
  channel.expected.erase(asked);
  return true;
}

void SharedMessages::end_reading(Channel& channel) {
  const std::shared_ptr<SharedMessage> message = std::move(channel.incoming);
  channel.incoming.reset();
  const auto early = std::ranges::find_if(channel.early, [&](const Early& one) { return one.held == message; });
  if (early == channel.early.end()) return finish(*message);
  message->done = true;
  if (!early->asked) return;
  deliver(*early);
  channel.early.erase(early);
}

// Returns whether the message arrived before its receive `asked` was posted. The receive then gets it, now or when it
// is complete.
bool SharedMessages::take_early(Channel& channel, const std::shared_ptr<SharedMessage>& asked) {
  const auto early =
      std::ranges::find_if(channel.early, [&](const Early& one) { return !one.asked && one.held->tag == asked->tag; });
  if (early == channel.early.end()) return false;
  early->asked = asked;
  if (early->held->done) {
    deliver(*early);
    channel.early.erase(early);
  }
  return true;
}

void SharedMessages::deliver(const Early& early) {
  const MessageRecord sent = record_of(*early.held, 0);
  if (!fits(sent, *early.asked)) return refuse(early.held->peer, sent, *early.asked);
  copy_piece(memory_of(*early.asked), memory_of(*early.held), sent.bytes);
  finish(*early.asked);
}

void SharedMessages::refuse(int peer, const MessageRecord& sent, const SharedMessage& asked) {
  MessageRefusal& refusal = own_.memory().header().refusals[peer];
  refusal.sent = sent;
  refusal.bytes = bytes_of(asked);
  refusal.type = type_of(asked);
  disagreement_ = words(peer, rank_, refusal);
  refusal.given.value.store(1, std::memory_order_release);
  ring_if_asleep(peers_[peer]->memory().header());
}

}  // namespace titan::comm
