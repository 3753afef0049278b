#include "common/rank_protocol/beacon.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <iterator>
#include <new>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/rank_protocol/rank_files.h"

namespace titan::rank_protocol {
namespace {

constexpr uint64_t kBeaconMagic = 0x4e4f434145425454;  // "TTBEACON" in memory order.
constexpr uint32_t kBeaconVersion = 1;
constexpr size_t kBeaconBytes = 4096;
static_assert(sizeof(BeaconPage) <= kBeaconBytes);
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

constexpr const char* kPhaseNames[] = {"init",     "rendezvous", "build",      "load",     "data", "forward",
                                       "backward", "optimizer",  "checkpoint", "validate", "exit"};

int64_t monotonic_nanos() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

}  // namespace

const char* name(Phase phase) {
  const auto index = static_cast<size_t>(phase);
  return index < std::size(kPhaseNames) ? kPhaseNames[index] : "unknown";
}

absl::StatusOr<std::unique_ptr<Beacon>> Beacon::create(const std::string& path, int rank) {
  TITAN_ASSIGN_OR_RETURN(void* const memory, create_page_file("beacon", path, kBeaconBytes, [rank](void* fresh) {
                           auto* page = new (fresh) BeaconPage{};
                           page->version = kBeaconVersion;
                           page->rank = static_cast<uint32_t>(rank);
                           page->pid = ::getpid();
                           page->phase_since = monotonic_nanos();
                           page->magic = kBeaconMagic;
                         }));
  return std::unique_ptr<Beacon>(new Beacon(static_cast<BeaconPage*>(memory)));
}

Beacon::~Beacon() { ::munmap(page_, kBeaconBytes); }

void Beacon::enter(Phase phase) {
  const int64_t now = monotonic_nanos();
  const uint32_t before = page_->phase.load(std::memory_order_relaxed);
  const int64_t spent = now - page_->phase_since.load(std::memory_order_relaxed);
  if (before < std::size(page_->phase_nanos)) page_->phase_nanos[before].fetch_add(spent, std::memory_order_relaxed);
  page_->phase_since.store(now, std::memory_order_relaxed);
  page_->phase.store(static_cast<uint32_t>(phase), std::memory_order_release);
  page_->counter.fetch_add(1, std::memory_order_release);
}

absl::Duration Beacon::time_in(Phase phase) const {
  int64_t nanos = page_->phase_nanos[static_cast<size_t>(phase)].load(std::memory_order_relaxed);
  if (page_->phase.load(std::memory_order_relaxed) == static_cast<uint32_t>(phase)) {
    nanos += monotonic_nanos() - page_->phase_since.load(std::memory_order_relaxed);
  }
  return absl::Nanoseconds(nanos);
}

absl::StatusOr<std::unique_ptr<BeaconReader>> BeaconReader::open(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const int fd, open_rank_file(path, O_RDWR));
  std::unique_ptr<BeaconReader> reader(new BeaconReader(fd, path));
  TITAN_RETURN_IF_ERROR(reader->look());
  return reader;
}

BeaconReader::~BeaconReader() { ::close(fd_); }

absl::Status BeaconReader::look() {
  alignas(BeaconPage) char bytes[kBeaconBytes];
  const ssize_t got = ::pread(fd_, bytes, sizeof(bytes), 0);
  if (got < 0) return errno_status(errno, absl::StrCat("read beacon ", path_));
  if (got < static_cast<ssize_t>(sizeof(bytes))) {
    return absl::DataLossError(absl::StrCat("beacon ", path_, " has ", got, " bytes, expected ", sizeof(bytes)));
  }
  const auto& page = *reinterpret_cast<const BeaconPage*>(bytes);
  if (page.magic != kBeaconMagic) return absl::DataLossError(absl::StrCat("beacon ", path_, " is not a beacon file"));
  if (page.version > kBeaconVersion) {
    return absl::FailedPreconditionError(absl::StrCat("beacon ", path_, " has version ", page.version, ", newer than ",
                                                      kBeaconVersion, ": update this program"));
  }
  std::memcpy(static_cast<void*>(&page_), bytes, sizeof(page_));
  return absl::OkStatus();
}

absl::Status BeaconReader::write_bytes(const void* bytes, size_t count, int64_t offset) {
  const ssize_t written = ::pwrite(fd_, bytes, count, offset);
  if (written != static_cast<ssize_t>(count)) {
    return errno_status(written < 0 ? errno : EIO, absl::StrCat("write beacon ", path_));
  }
  std::memcpy(reinterpret_cast<char*>(&page_) + offset, bytes, count);
  return absl::OkStatus();
}

}  // namespace titan::rank_protocol
