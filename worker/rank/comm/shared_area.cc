#include "worker/rank/comm/shared_area.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/io/storage/process_identity.h"

namespace titan::comm {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHeaderBytes = (sizeof(AreaHeader) + kPage - 1) / kPage * kPage;
constexpr size_t kAllSlotsBytes = kSlots * kSlotBytes;
constexpr size_t kChannelBytes = kMessageSlots * kSlotBytes;

size_t area_bytes(int members) { return kHeaderBytes + kAllSlotsBytes + static_cast<size_t>(members) * kChannelBytes; }

void* map(int file, size_t bytes, size_t offset, bool writable) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, file, static_cast<off_t>(offset));
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

void unmap(void* memory, size_t bytes) {
  if (memory != nullptr) ::munmap(memory, bytes);
}

bool has_size_of_an_area(int file, int members) {
  struct stat about {};
  return ::fstat(file, &about) == 0 && about.st_size == static_cast<off_t>(area_bytes(members));
}

host::Descriptor open_in(const std::string& process, const std::string& descriptor, int mode) {
  return host::Descriptor(
      ::open(absl::StrCat("/proc/", process, "/fd/", descriptor).c_str(), mode | O_CLOEXEC | O_NONBLOCK));
}

}  // namespace

AreaMapping::AreaMapping(int file, bool own, int first_channel, int channels)
    : first_channel_(first_channel), messages_bytes_(static_cast<size_t>(channels) * kChannelBytes) {
  try {
    header_ = static_cast<AreaHeader*>(map(file, kHeaderBytes, 0, /*writable=*/true));
    slots_ = static_cast<std::byte*>(map(file, kAllSlotsBytes, kHeaderBytes, /*writable=*/own));
    messages_ = static_cast<std::byte*>(map(file, messages_bytes_, area_bytes(first_channel), /*writable=*/own));
  } catch (...) {
    close();
    throw;
  }
}

void AreaMapping::close() {
  unmap(header_, kHeaderBytes);
  unmap(slots_, kAllSlotsBytes);
  unmap(messages_, messages_bytes_);
}

OwnArea::OwnArea(host::Descriptor file, host::Descriptor sign, host::Descriptor alive, int members)
    : file_(std::move(file)),
      sign_(std::move(sign)),
      alive_(std::move(alive)),
      memory_(file_.get(), /*own=*/true, /*first_channel=*/0, members) {
  std::random_device random;
  for (uint64_t& word : memory_.header().token) word = (uint64_t{random()} << 32) | random();
}

std::unique_ptr<OwnArea> OwnArea::create(int members) {
  host::Descriptor file(::memfd_create("titan-exchange", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  int ends[2];
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(area_bytes(members))) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
      ::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return nullptr;
  }
  host::Descriptor sign(ends[0]), alive(ends[1]);
  try {
    return std::unique_ptr<OwnArea>(new OwnArea(std::move(file), std::move(sign), std::move(alive), members));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// process_identity() starts with the machine's boot id, the pid namespace and the pid.
std::string OwnArea::invitation() const {
  const AreaHeader& header = memory_.header();
  return absl::StrCat(storage::process_identity(), " ", file_.get(), " ", sign_.get(), " ", header.token[0], " ",
                      header.token[1]);
}

void OwnArea::forbid_opening() {
  file_.reset();
  sign_.reset();
}

std::unique_ptr<PeerArea> PeerArea::open(const std::string& invitation, int members, int reader) {
  enum Part { kBoot, kNamespace, kProcess, kStart, kFile, kSign, kToken, kTokenEnd, kParts };
  const std::vector<std::string> theirs = absl::StrSplit(invitation, ' ');
  const std::vector<std::string> ours = absl::StrSplit(storage::process_identity(), ' ');
  uint64_t token[2];
  if (theirs.size() != kParts || ours.size() != kFile || theirs[kBoot] != ours[kBoot] ||
      theirs[kNamespace] != ours[kNamespace] || !absl::SimpleAtoi(theirs[kToken], &token[0]) ||
      !absl::SimpleAtoi(theirs[kTokenEnd], &token[1])) {
    return nullptr;
  }
  // Open the pipe first: if the area's token matches, the pipe is of the same process.
  host::Descriptor sign = open_in(theirs[kProcess], theirs[kSign], O_RDONLY);
  const host::Descriptor file = open_in(theirs[kProcess], theirs[kFile], O_RDWR);
  if (!sign || !file || !has_size_of_an_area(file.get(), members)) return nullptr;
  try {
    std::unique_ptr<PeerArea> peer(new PeerArea(file.get(), std::move(sign), reader));
    const AreaHeader& header = peer->memory_.header();
    return header.token[0] == token[0] && header.token[1] == token[1] ? std::move(peer) : nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

bool PeerArea::is_gone() const {
  pollfd question{.fd = sign_.get(), .events = 0, .revents = 0};
  return ::poll(&question, 1, 0) > 0 && (question.revents & POLLHUP) != 0;
}

namespace {

uint32_t begin_sleep(AreaHeader& header) {
  header.asleep.value.fetch_add(1);
  return header.bell.value.load();
}

}  // namespace

void ring(AreaHeader& header) {
  header.bell.value.fetch_add(1);
  ::syscall(SYS_futex, &header.bell.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// This fence and the one in Sleep order each side's store before its load of the other's.
void ring_if_asleep(AreaHeader& header) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (header.asleep.value.load(std::memory_order_relaxed) != 0) ring(header);
}

Sleep::Sleep(AreaHeader& header) : header_(header), bell_(begin_sleep(header)) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Sleep::until_rung(std::chrono::milliseconds longest) {
  const timespec limit{.tv_sec = longest.count() / 1000, .tv_nsec = longest.count() % 1000 * 1'000'000};
  ::syscall(SYS_futex, &header_.bell.value, FUTEX_WAIT, bell_, &limit, nullptr, 0);
}

}  // namespace titan::comm
