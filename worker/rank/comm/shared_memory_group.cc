#include "worker/rank/comm/shared_memory_group.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "worker/rank/comm/group.h"
#include "worker/rank/comm/shared_area.h"
#include "worker/rank/comm/shared_sum.h"

namespace titan::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Waking costs both sides tens of microseconds, so a rank polls for this long before it sleeps.
constexpr std::chrono::microseconds kLookAround(20);
// How often a sleeping rank checks whether the others are alive, and advances its other groups.
constexpr milliseconds kSlice(10);
constexpr milliseconds kSliceWithOthers(1);

// Does not yield: where other processes compute, a yield costs one of their time slices, but being woken does not.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

std::string named(int rank) { return "rank " + std::to_string(rank) + " of the group"; }

constexpr const char* kKinds[] = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "barrier"};

// Encodes kind, reduction and type in one number.
uint32_t call_of(const SharedOperation& operation) {
  return static_cast<uint32_t>(operation.kind) << 16 |
         (operation.reduces ? static_cast<uint32_t>(operation.reduction) : 0) << 8 |
         static_cast<uint32_t>(static_cast<uint8_t>(operation.type));
}

std::string words(uint32_t call, int64_t bytes) {
  const uint32_t kind = std::min<uint32_t>(call >> 16, std::size(kKinds) - 1);
  return std::string(kKinds[kind]) + " of " + std::to_string(bytes) + " bytes of " +
         c10::toString(static_cast<at::ScalarType>(call & 0xff)) +
         ((call >> 8 & 0xff) != 0 ? " by reduction " + std::to_string(call >> 8 & 0xff) : "");
}

int64_t largest_part(const SharedOperation& operation, int rank) {
  int64_t most = 0;
  for (size_t to = 0; to < operation.sent.size(); ++to) {
    if (static_cast<int>(to) != rank) most = std::max(most, operation.sent[to].bytes);
  }
  return most;
}

// Returns the bytes of the piece that begins at `offset` of a part with `all` bytes.
int64_t bytes_at(int64_t offset, int64_t all, int64_t stretch) { return std::clamp<int64_t>(all - offset, 0, stretch); }

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

SharedMemoryGroup::SharedMemoryGroup(int rank, std::unique_ptr<OwnArea> own,
                                     std::vector<std::unique_ptr<PeerArea>> peers)
    : rank_(rank),
      own_(std::move(own)),
      peers_(std::move(peers)),
      messages_(rank_, *own_, peers_),
      consumed_(peers_.size(), 0) {}

void SharedMemoryGroup::check_usable() {
  if (aborted_ && broken_.why.empty()) fail({named(rank_) + " has aborted"});
  TORCH_CHECK_VALUE(!broken_.disagreement, broken_.why);
  if (!broken_.why.empty()) C10_THROW_ERROR(DistBackendError, broken_.why);
}

// The others notice at once, as they would notice a broken connection. They can still read what this rank has sent.
void SharedMemoryGroup::fail(Trouble trouble) {
  if (broken_.why.empty()) broken_ = std::move(trouble);
  queue_.clear();
  messages_.forget();
  leave();
}

// If the readers of a slot read different data, each has its share of the slot, which starts at a cache line.
int64_t SharedMemoryGroup::stretch_of(const SharedOperation& operation) const {
  return operation.same_for_all ? kSlotBytes : kSlotBytes / (size() - 1) / 64 * 64;
}

std::byte* SharedMemoryGroup::place(std::byte* slot, const SharedOperation& operation, int writer, int reader) const {
  if (operation.same_for_all) return slot;
  return slot + stretch_of(operation) * (reader < writer ? reader : reader - 1);
}

std::shared_ptr<SharedOperation> SharedMemoryGroup::issue(SharedOperation operation) {
  auto issued = std::make_shared<SharedOperation>(std::move(operation));
  sync::Lock lock(mutex_);
  check_usable();
  issued->number = next_number_++;
  issued->taken.assign(peers_.size(), 0);
  if (issued->sends) {
    const int64_t stretch = stretch_of(*issued);
    issued->stretches = std::max<int64_t>(1, (largest_part(*issued, rank_) + stretch - 1) / stretch);
  }
  queue_.push_back(issued);
  while (publish_one()) continue;
  return issued;
}

std::shared_ptr<SharedMessage> SharedMemoryGroup::issue(SharedMessage message) {
  auto issued = std::make_shared<SharedMessage>(std::move(message));
  sync::Lock lock(mutex_);
  check_usable();
  messages_.post(issued);
  check_messages();
  return issued;
}

bool SharedMemoryGroup::has_record(int peer) const {
  return peers_[peer]->memory().header().published.value.load(std::memory_order_acquire) != consumed_[peer];
}

// Returns the number of slots that at least one other rank has not read yet.
uint32_t SharedMemoryGroup::filled() const {
  uint32_t most = 0;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    const auto& count = peer->memory().header().consumed[rank_].value;
    most = std::max(most, published_ - count.load(std::memory_order_acquire));
  }
  return most;
}

bool SharedMemoryGroup::publish_one() {
  const auto next = std::find_if(queue_.begin(), queue_.end(),
                                 [](const auto& operation) { return operation->published < operation->stretches; });
  if (next == queue_.end()) return false;
  const uint32_t occupied = filled();
  if (occupied == kSlots) return false;
  if (occupied == 0) next_slot_ = 0;  // Reuse the first pages, which are in the cache.
  SharedOperation& operation = **next;
  AreaHeader& header = own_->memory().header();
  SlotRecord& record = header.records[published_ % kSlots];
  record.operation = operation.number;
  record.call = call_of(operation);
  record.slot = std::exchange(next_slot_, (next_slot_ + 1) % kSlots);
  record.last = operation.published + 1 == operation.stretches;
  const int64_t stretch = stretch_of(operation), offset = operation.published * stretch;
  for (int to = 0; to < size(); ++to) {
    record.bytes[to] = operation.sent[to].bytes;
    if (to == rank_ || (operation.same_for_all && to != (rank_ == 0 ? 1 : 0))) continue;
    copy_bytes(place(own_->memory().slot(record.slot), operation, rank_, to), operation.sent[to].memory + offset,
               bytes_at(offset, operation.sent[to].bytes, stretch));
  }
  ++operation.published;
  header.published.value.store(++published_, std::memory_order_release);
  ring_others();
  return true;
}

void SharedMemoryGroup::ring_others() {
  for (const auto& peer : peers_) {
    if (peer) ring_if_asleep(peer->memory().header());
  }
}

// Returns the peer's next record if it belongs to this operation. Otherwise fails the group, because the ranks
// disagree.
const SlotRecord* SharedMemoryGroup::record_of(const SharedOperation& operation, int peer) {
  const SlotRecord& record = peers_[peer]->memory().header().records[consumed_[peer] % kSlots];
  const int64_t expected = operation.received[peer].bytes;
  if (record.operation == operation.number && record.call == call_of(operation) && record.bytes[rank_] == expected &&
      record.slot < kSlots) {
    return &record;
  }
  fail({named(rank_) + " calls " + words(call_of(operation), expected) + " but " + named(peer) + " calls " +
            words(record.call, record.bytes[rank_]) + kNotTheSame,
        /*disagreement=*/true});
  return nullptr;
}

void SharedMemoryGroup::consume(SharedOperation& operation, int peer, bool last) {
  ++operation.taken[peer];
  if (last) operation.receives[peer] = false;
  own_->memory().header().consumed[peer].value.store(++consumed_[peer], std::memory_order_release);
}

// Reads one slot from each peer that has published one, for the oldest operation.
bool SharedMemoryGroup::read_one() {
  if (queue_.empty()) return false;
  SharedOperation& operation = *queue_.front();
  if (operation.reduces) return reduce_one(operation);
  const int64_t stretch = stretch_of(operation);
  bool moved = false;
  for (int peer = 0; peer < size(); ++peer) {
    if (!operation.receives[peer] || !has_record(peer)) continue;
    const SlotRecord* record = record_of(operation, peer);
    if (record == nullptr) return false;
    const int64_t offset = operation.taken[peer] * stretch;
    copy_bytes(operation.received[peer].memory + offset,
               place(peers_[peer]->memory().slot(record->slot), operation, peer, rank_),
               bytes_at(offset, operation.received[peer].bytes, stretch));
    consume(operation, peer, record->last);
    moved = true;
  }
  if (moved) ring_others();
  return moved;
}

// Reduces the next piece of the result, in rank order, when all peers have published theirs.
bool SharedMemoryGroup::reduce_one(SharedOperation& operation) {
  std::vector<const std::byte*> parts(peers_.size());
  std::vector<const SlotRecord*> records(peers_.size());
  const int first = rank_ == 0 ? 1 : 0;
  const int64_t stretch = stretch_of(operation), offset = operation.taken[first] * stretch;
  // An all_reduce overwrites what it sends, so the piece must be published first.
  if (operation.published <= operation.taken[first]) return false;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_ && (!operation.receives[peer] || !has_record(peer))) return false;
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) {
      parts[peer] = operation.own + offset;
      continue;
    }
    records[peer] = record_of(operation, peer);
    if (records[peer] == nullptr) return false;
    parts[peer] = place(peers_[peer]->memory().slot(records[peer]->slot), operation, peer, rank_);
  }
  const int64_t bytes = bytes_at(offset, operation.received[first].bytes, stretch);
  const auto count = bytes / static_cast<int64_t>(c10::elementSize(operation.type));
  combine(parts, operation.result + offset, count, operation.type, operation.reduction);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_) consume(operation, peer, records[peer]->last);
  }
  ring_others();
  return true;
}

// Returns whether the oldest operation was done and has been removed.
bool SharedMemoryGroup::finish_front() {
  if (queue_.empty()) return false;
  SharedOperation& operation = *queue_.front();
  const bool waits = std::ranges::any_of(operation.receives, [](bool receives) { return receives; });
  if (waits || operation.published < operation.stretches) return false;
  operation.done = true;
  operation.tensors.clear();
  queue_.pop_front();
  return true;
}

// One step of each kind, so that a large operation passes through memory that is still in the cache.
bool SharedMemoryGroup::advance() {
  const bool published = publish_one();
  const bool read = read_one();
  const bool messages = messages_.advance();
  check_messages();
  return finish_front() || published || read || messages;
}

void SharedMemoryGroup::check_messages() {
  if (!messages_.disagreement().empty()) fail({messages_.disagreement(), /*disagreement=*/true});
}

bool SharedMemoryGroup::is_done(const bool& done) {
  if (!mutex_.try_lock()) return false;
  while (broken_.why.empty() && advance()) continue;
  const bool over = done || !broken_.why.empty();
  mutex_.unlock();
  return over;
}

bool SharedMemoryGroup::help() {
  if (!mutex_.try_lock()) return false;
  while (broken_.why.empty() && advance()) continue;
  const bool more = messages_.has_more_to_send() || std::ranges::any_of(queue_, [](const auto& operation) {
                      return operation->published < operation->stretches;
                    });
  mutex_.unlock();
  return more;
}

// Returns whether progress depends on the peer: it has not published what this rank reads next, or it has not read
// slots that this rank needs.
bool SharedMemoryGroup::needs(int peer) const {
  if (queue_.empty() || peer == rank_) return false;
  if (queue_.front()->receives[peer] && !has_record(peer)) return true;
  const auto& read = peers_[peer]->memory().header().consumed[rank_].value;
  return queue_.front()->published < queue_.front()->stretches &&
         published_ - read.load(std::memory_order_acquire) == kSlots;
}

void SharedMemoryGroup::fail_for_missing_peers(int message_peer, const std::string& what) {
  std::string ranks;
  for (int peer = 0; peer < size(); ++peer) {
    const bool needed = message_peer < 0 ? needs(peer) : peer == message_peer;
    if (needed) ranks += (ranks.empty() ? "rank " : ", ") + std::to_string(peer);
  }
  fail({ranks + " of the group " + what});
}

void SharedMemoryGroup::check_lost_peers(const bool& done, int message_peer) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_ || (message_peer >= 0 && peer != message_peer) || !peers_[peer]->is_gone()) continue;
    // First use what the peer published before it ended.
    while (broken_.why.empty() && advance()) continue;
    if (!done && (message_peer >= 0 || needs(peer))) fail({named(peer) + " is gone"});
  }
}

// Polls for a short while. Returns whether something moved.
bool SharedMemoryGroup::spin() {
  const auto end = Clock::now() + kLookAround;
  do {
    if (advance()) return true;
    pause();
  } while (Clock::now() < end && broken_.why.empty());
  return false;
}

// Returns whether something moved or another rank rang. Another thread of this rank may make progress meanwhile.
bool SharedMemoryGroup::sleep(milliseconds longest) {
  Sleep sleep(own_->memory().header());
  const bool moved = advance();
  if (!moved && !aborted_ && broken_.why.empty()) {
    mutex_.unlock();
    sleep.until_rung(longest);
    mutex_.lock();
  }
  return moved || sleep.rung();
}

void SharedMemoryGroup::wait_until(const bool& done, int message_peer, milliseconds timeout,
                                   SharedMemoryGroups& groups) {
  const auto deadline = Clock::now() + timeout;
  sync::Lock lock(mutex_);
  milliseconds slice = kSlice;
  while (!done) {
    check_usable();
    if (spin()) continue;
    if (!sleep(slice)) {
      slice = groups.advance_others(*this) ? kSliceWithOthers : kSlice;
      check_lost_peers(done, message_peer);
    }
    if (Clock::now() > deadline && !advance() && !done) {
      fail_for_missing_peers(message_peer, kTookNoPart + 1 + std::to_string(timeout.count()) + " ms");
    }
  }
}

void SharedMemoryGroup::abort() {
  aborted_ = true;
  leave();
  ring(own_->memory().header());
}

void SharedMemoryGroup::leave() {
  std::call_once(left_, [this] { own_->leave(); });
}

void SharedMemoryGroups::add(const std::shared_ptr<SharedMemoryGroup>& group) {
  sync::Lock lock(mutex_);
  std::erase_if(groups_, [](const auto& known) { return known.expired(); });
  groups_.push_back(group);
}

bool SharedMemoryGroups::advance_others(const SharedMemoryGroup& waiting) {
  std::vector<std::shared_ptr<SharedMemoryGroup>> others;
  {
    sync::Lock lock(mutex_);
    for (const auto& known : groups_) {
      auto group = known.lock();
      if (group && group.get() != &waiting) others.push_back(std::move(group));
    }
  }
  bool more = false;
  for (const auto& group : others) more |= group->help();
  return more;
}

}  // namespace titan::comm
