#include "common/rank_protocol/flight_tail.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/rank_protocol/rank_files.h"

namespace titan::rank_protocol {
namespace {

constexpr uint64_t kTailMagic = 0x544847494c465454;  // "TTFLIGHT" in memory order.
constexpr uint32_t kTailVersion = 1;
constexpr size_t kMaxMembers = 1 << 17;  // Limits what a text that a user's program wrote can expand to.
constexpr size_t kNameBytes = 32, kMembersBytes = 48, kOperationBytes = 24, kTypeBytes = 16;

}  // namespace

struct TailGroup {
  char name[kNameBytes];
  char members[kMembersBytes];
  uint64_t key;
  std::atomic<int64_t> issued;
};

struct TailCall {
  std::atomic<int64_t> stamp;  // Number of the call + 1, written last; 0 while the entry is being written.
  int64_t sequence;
  int64_t elements;
  int64_t mark, since_mark;
  int64_t created_ns;
  int32_t group;
  std::atomic<uint32_t> state;  // A CallState.
  char operation[kOperationBytes];
  char type[kTypeBytes];
};

struct FlightTailPage {
  uint64_t magic;
  uint32_t version;
  int32_t rank;
  std::atomic<int32_t> groups;
  TailGroup group[FlightTail::kGroups];
  TailCall call[FlightTail::kCalls];
};

namespace {

template <size_t kBytes>
void put_text(char (&to)[kBytes], const std::string& text) {
  const size_t size = std::min(text.size(), kBytes - 1);
  std::memcpy(to, text.data(), size);
  std::memset(to + size, 0, kBytes - size);
}

// Replaces bytes that are not printable ASCII.
template <size_t kBytes>
std::string get_text(const char (&from)[kBytes]) {
  std::string text(from, strnlen(from, kBytes));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

absl::Status not_a_tail(const std::string& path, const char* what) {
  return absl::DataLossError(absl::StrCat("flight tail ", path, " ", what));
}

// Drops the ranges that do not fit. Cut inside of a number, a range would name other ranks.
std::string whole_ranges(const std::string& members, size_t limit) {
  if (members.size() <= limit) return members;
  const size_t end = members.rfind(',', limit);
  return members.substr(0, end == std::string::npos ? 0 : end);
}

CallState state_of(uint32_t number) {
  return number <= static_cast<uint32_t>(CallState::kInside) ? static_cast<CallState>(number) : CallState::kCompleted;
}

std::vector<FlightCall> calls_of(const FlightTailPage& page, size_t groups) {
  std::vector<std::pair<int64_t, const TailCall*>> order;
  for (int i = 0; i < FlightTail::kCalls; ++i) {
    const int64_t stamp = page.call[i].stamp.load(std::memory_order_relaxed);  // Number of the call, from 1.
    if (stamp > 0 && (stamp - 1) % FlightTail::kCalls == i) order.emplace_back(stamp - 1, &page.call[i]);
  }
  std::sort(order.begin(), order.end());
  std::vector<FlightCall> calls;
  for (const auto& [number, call] : order) {
    if (call->group < 0 || static_cast<size_t>(call->group) >= groups) continue;  // Its group did not fit.
    calls.push_back({call->group, call->sequence, get_text(call->operation), get_text(call->type), call->elements,
                     call->mark, call->since_mark, call->created_ns,
                     state_of(call->state.load(std::memory_order_relaxed))});
  }
  return calls;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FlightTail>> FlightTail::create(const std::string& path, int rank) {
  const auto set_up = [rank](void* fresh) {
    auto* page = new (fresh) FlightTailPage{};
    page->version = kTailVersion;
    page->rank = rank;
    page->magic = kTailMagic;
  };
  TITAN_ASSIGN_OR_RETURN(void* const memory, create_page_file("flight tail", path, sizeof(FlightTailPage), set_up));
  return std::unique_ptr<FlightTail>(new FlightTail(static_cast<FlightTailPage*>(memory)));
}

FlightTail::~FlightTail() { ::munmap(page_, sizeof(*page_)); }

void FlightTail::add_group(int number, const FlightGroup& group) {
  if (number < 0 || number >= kGroups) return;
  TailGroup& to = page_->group[number];
  put_text(to.name, group.name);
  put_text(to.members, whole_ranges(group.members, kMembersBytes - 1));
  to.key = group.key;
  page_->groups.store(std::max(page_->groups.load(std::memory_order_relaxed), number + 1), std::memory_order_release);
}

void FlightTail::add_call(int64_t number, const FlightCall& call) {
  TailCall& to = page_->call[number % kCalls];
  to.stamp.store(0, std::memory_order_relaxed);
#ifndef TITAN_THREAD_SANITIZER  // ThreadSanitizer does not support fences; the reader is another process.
  std::atomic_thread_fence(std::memory_order_release);
#endif
  to.sequence = call.sequence;
  to.elements = call.elements;
  to.mark = call.mark;
  to.since_mark = call.since_mark;
  to.created_ns = call.created_ns;
  to.group = call.group;
  to.state.store(static_cast<uint32_t>(call.state), std::memory_order_relaxed);
  put_text(to.operation, call.operation);
  put_text(to.type, call.type);
  to.stamp.store(number + 1, std::memory_order_release);
  if (call.group >= 0 && call.group < kGroups) {
    page_->group[call.group].issued.store(call.sequence, std::memory_order_release);
  }
}

void FlightTail::set_state(int64_t number, CallState state) {
  TailCall& call = page_->call[number % kCalls];
  if (call.stamp.load(std::memory_order_relaxed) != number + 1) return;  // Already overwritten.
  call.state.store(static_cast<uint32_t>(state), std::memory_order_release);
}

absl::StatusOr<RankFlight> read_flight_tail(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const int fd, open_rank_file(path, O_RDONLY));
  const absl::Cleanup close_it = [fd] { ::close(fd); };
  const auto copy = std::make_unique<FlightTailPage>();  // Not mapped, since its owner may shorten the file at any
                                                         // moment.
  const ssize_t got = ::pread(fd, static_cast<void*>(copy.get()), sizeof(*copy), 0);
  if (got < 0) return errno_status(errno, absl::StrCat("read ", path));
  if (got < static_cast<ssize_t>(sizeof(*copy)) || copy->magic != kTailMagic)
    return not_a_tail(path, "is not a flight tail");
  if (copy->version > kTailVersion) {
    return absl::FailedPreconditionError(absl::StrCat("flight tail ", path, " has version ", copy->version,
                                                      ", newer than ", kTailVersion, ": update this program"));
  }
  const int32_t groups = copy->groups.load(std::memory_order_relaxed);
  if (groups < 0 || groups > FlightTail::kGroups) return not_a_tail(path, "has an invalid number of groups");
  RankFlight flight;
  flight.rank = copy->rank;
  for (int i = 0; i < groups; ++i) {
    const TailGroup& group = copy->group[i];
    flight.groups.push_back(
        {get_text(group.name), get_text(group.members), group.key, group.issued.load(std::memory_order_relaxed)});
  }
  flight.calls = calls_of(*copy, flight.groups.size());
  return flight;
}

std::string format_rank_list(const std::vector<int>& ranks) {
  std::string text;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin + 1;
    const int stride = end < ranks.size() ? ranks[end] - ranks[begin] : 1;
    while (end < ranks.size() && ranks[end] - ranks[end - 1] == stride) ++end;
    if (end - begin == 2 && stride != 1) end = begin + 1;  // Two ranks with a gap are not a range.
    absl::StrAppend(&text, text.empty() ? "" : ",", ranks[begin]);
    if (end - begin > 1) absl::StrAppend(&text, "-", ranks[end - 1], stride == 1 ? "" : absl::StrCat("/", stride));
    begin = end;
  }
  return text;
}

std::vector<int> parse_rank_list(const std::string& members) {
  std::vector<int> ranks;
  for (const absl::string_view part : absl::StrSplit(members, ',')) {
    const std::vector<absl::string_view> range = absl::StrSplit(part.substr(0, part.find('/')), '-');
    int first = 0, last = 0, stride = 1;
    const size_t slash = part.find('/');
    const bool is_range = absl::SimpleAtoi(range.front(), &first) && absl::SimpleAtoi(range.back(), &last) &&
                          (slash == part.npos || absl::SimpleAtoi(part.substr(slash + 1), &stride));
    if (!is_range || range.size() > 2 || first < 0 || stride < 1) break;
    for (int64_t rank = first; rank <= last && ranks.size() < kMaxMembers; rank += stride)
      ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

// FNV-1a over the name and the ranks as text.
uint64_t group_key(const std::string& name, const std::vector<int>& ranks) {
  uint64_t key = 0xcbf29ce484222325;
  const auto add = [&key](absl::string_view text) {
    for (const char byte : text) key = (key ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  };
  add(name);
  for (const int rank : ranks) add(absl::StrCat(" ", rank));
  return key;
}

}  // namespace titan::rank_protocol
