#include "tests/controller/store/faulty_vfs.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

namespace titan::store {
namespace {

constexpr int64_t kSector = 512;

}  // namespace

// An open file, in memory that SQLite allocates.
struct FaultyFile {
  sqlite3_file base;
  FaultyDisk* disk;
  std::shared_ptr<FaultyDisk::File> file;
  int lock;
  bool mapped;

  static FaultyFile& of(sqlite3_file* file) { return *reinterpret_cast<FaultyFile*>(file); }

  static int close(sqlite3_file* raw) {
    unlock(raw, SQLITE_LOCK_NONE);
    of(raw).file.~shared_ptr();
    return SQLITE_OK;
  }

  static int read(sqlite3_file* raw, void* buffer, int size, sqlite3_int64 offset) {
    FaultyFile& self = of(raw);
    const std::lock_guard lock(self.disk->mutex_);
    if (self.disk->count(FaultyDisk::Operation::kRead) != 0) return SQLITE_IOERR_READ;
    const std::string& content = self.file->content;
    const int64_t present = std::clamp<int64_t>(static_cast<int64_t>(content.size()) - offset, 0, size);
    if (present > 0) memcpy(buffer, content.data() + offset, static_cast<size_t>(present));
    memset(static_cast<char*>(buffer) + present, 0, static_cast<size_t>(size - present));
    return present == size ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
  }

  static int write(sqlite3_file* raw, const void* buffer, int size, sqlite3_int64 offset) {
    FaultyFile& self = of(raw);
    const std::lock_guard lock(self.disk->mutex_);
    if (self.disk->count(FaultyDisk::Operation::kWrite) != 0) return SQLITE_IOERR_WRITE;
    const int64_t grows = offset + size - static_cast<int64_t>(self.file->content.size());
    if (self.disk->capacity_ > 0 && grows > 0 && self.disk->used() + grows > self.disk->capacity_) return SQLITE_FULL;
    FaultyDisk::Write written{offset, std::string(static_cast<const char*>(buffer), static_cast<size_t>(size)), false};
    FaultyDisk::apply(self.file->content, written);
    self.file->pending.push_back(std::move(written));
    return SQLITE_OK;
  }

  static int truncate(sqlite3_file* raw, sqlite3_int64 size) {
    FaultyFile& self = of(raw);
    const std::lock_guard lock(self.disk->mutex_);
    if (self.disk->count(FaultyDisk::Operation::kWrite) != 0) return SQLITE_IOERR_TRUNCATE;
    FaultyDisk::Write cut{size, {}, true};
    FaultyDisk::apply(self.file->content, cut);
    self.file->pending.push_back(std::move(cut));
    return SQLITE_OK;
  }

  static int sync(sqlite3_file* raw, int) {
    FaultyFile& self = of(raw);
    const std::lock_guard lock(self.disk->mutex_);
    const int failed = self.disk->count(FaultyDisk::Operation::kSync);
    if (failed == 0) self.file->durable = self.file->content;
    if (!self.disk->dead_) self.file->pending.clear();
    return failed == 0 ? SQLITE_OK : SQLITE_IOERR_FSYNC;
  }

  static int size(sqlite3_file* raw, sqlite3_int64* size) {
    FaultyFile& self = of(raw);
    const std::lock_guard lock(self.disk->mutex_);
    *size = static_cast<sqlite3_int64>(self.file->content.size());
    return SQLITE_OK;
  }

  static int take(sqlite3_file* raw, int wanted) {
    FaultyFile& self = of(raw);
    const std::lock_guard lock(self.disk->mutex_);
    FaultyDisk::File& file = *self.file;
    if (self.lock >= wanted) return SQLITE_OK;
    const bool others = (file.exclusive != nullptr && file.exclusive != raw) ||
                        (wanted >= SQLITE_LOCK_RESERVED && file.reserved != nullptr && file.reserved != raw);
    if (others) return SQLITE_BUSY;
    if (wanted == SQLITE_LOCK_EXCLUSIVE && file.shared > 1) return SQLITE_BUSY;
    if (self.lock == SQLITE_LOCK_NONE) ++file.shared;
    if (wanted >= SQLITE_LOCK_RESERVED) file.reserved = raw;
    if (wanted == SQLITE_LOCK_EXCLUSIVE) file.exclusive = raw;
    self.lock = wanted;
    return SQLITE_OK;
  }

  static int unlock(sqlite3_file* raw, int wanted) {
    FaultyFile& self = of(raw);
    const std::lock_guard lock(self.disk->mutex_);
    FaultyDisk::File& file = *self.file;
    if (self.lock <= wanted) return SQLITE_OK;
    if (file.exclusive == raw) file.exclusive = nullptr;
    if (file.reserved == raw && wanted < SQLITE_LOCK_RESERVED) file.reserved = nullptr;
    if (wanted == SQLITE_LOCK_NONE) --file.shared;
    self.lock = wanted;
    return SQLITE_OK;
  }

  static int reserved(sqlite3_file* raw, int* held) {
    FaultyFile& self = of(raw);
    const std::lock_guard lock(self.disk->mutex_);
    *held = self.file->reserved != nullptr ? 1 : 0;
    return SQLITE_OK;
  }

  static int control(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
  static int sector(sqlite3_file*) { return kSector; }
  static int traits(sqlite3_file*) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; }

  static int shm_map(sqlite3_file* raw, int page, int size, int extend, void volatile** memory) {
    FaultyFile& self = of(raw);
    const std::lock_guard lock(self.disk->mutex_);
    auto& pages = self.file->memory;
    if (!self.mapped) ++self.file->mappings;
    self.mapped = true;
    while (extend != 0 && static_cast<int>(pages.size()) <= page) {
      pages.push_back(std::make_unique<std::vector<char>>(static_cast<size_t>(size)));
    }
    *memory = page < static_cast<int>(pages.size()) ? pages[static_cast<size_t>(page)]->data() : nullptr;
    return SQLITE_OK;
  }

  static int shm_lock(sqlite3_file* raw, int first, int count, int flags) {
    FaultyFile& self = of(raw);
    const std::lock_guard lock(self.disk->mutex_);
    int* slots = self.file->slots;
    const bool shared = (flags & SQLITE_SHM_SHARED) != 0;
    if ((flags & SQLITE_SHM_UNLOCK) != 0) {
      for (int i = first; i < first + count; ++i) slots[i] = shared ? slots[i] - 1 : 0;
      return SQLITE_OK;
    }
    for (int i = first; i < first + count; ++i) {
      if (shared ? slots[i] < 0 : slots[i] != 0) return SQLITE_BUSY;
    }
    for (int i = first; i < first + count; ++i) slots[i] = shared ? slots[i] + 1 : -1;
    return SQLITE_OK;
  }

  static void shm_barrier(sqlite3_file* raw) { const std::lock_guard lock(of(raw).disk->mutex_); }
  // The last unmap discards the memory, as for a file that is created again.
  static int shm_unmap(sqlite3_file* raw, int) {
    FaultyFile& self = of(raw);
    const std::lock_guard lock(self.disk->mutex_);
    if (!self.mapped) return SQLITE_OK;
    self.mapped = false;
    if (--self.file->mappings == 0) self.file->memory.clear();
    return SQLITE_OK;
  }

  static const sqlite3_io_methods* methods() {
    static const sqlite3_io_methods all = {2,         &close,       &read,      &write,   &truncate, &sync,   &size,
                                           &take,     &unlock,      &reserved,  &control, &sector,   &traits, &shm_map,
                                           &shm_lock, &shm_barrier, &shm_unmap, nullptr,  nullptr};
    return &all;
  }

  static FaultyDisk& disk_of(sqlite3_vfs* vfs) { return *static_cast<FaultyDisk*>(vfs->pAppData); }

  static int open(sqlite3_vfs* vfs, const char* name, sqlite3_file* raw, int flags, int* out) {
    FaultyDisk& disk = disk_of(vfs);
    const std::lock_guard lock(disk.mutex_);
    raw->pMethods = nullptr;
    if (disk.dead_) return SQLITE_CANTOPEN;
    std::shared_ptr<FaultyDisk::File> file;
    if (name == nullptr) {
      file = std::make_shared<FaultyDisk::File>();
    } else {
      const auto found = disk.files_.find(name);
      if (found == disk.files_.end() && (flags & SQLITE_OPEN_CREATE) == 0) return SQLITE_CANTOPEN;
      if (found == disk.files_.end()) disk.files_[name] = std::make_shared<FaultyDisk::File>();
      file = disk.files_[name];
    }
    auto* self = reinterpret_cast<FaultyFile*>(raw);
    self->disk = &disk;
    new (&self->file) std::shared_ptr<FaultyDisk::File>(std::move(file));
    self->lock = SQLITE_LOCK_NONE;
    self->mapped = false;
    raw->pMethods = methods();
    if (out != nullptr) *out = flags;
    return SQLITE_OK;
  }

  static int remove(sqlite3_vfs* vfs, const char* name, int) {
    FaultyDisk& disk = disk_of(vfs);
    const std::lock_guard lock(disk.mutex_);
    if (disk.count(FaultyDisk::Operation::kWrite) != 0) return SQLITE_IOERR_DELETE;
    return disk.files_.erase(name) > 0 ? SQLITE_OK : SQLITE_IOERR_DELETE_NOENT;
  }

  static int access(sqlite3_vfs* vfs, const char* name, int, int* present) {
    FaultyDisk& disk = disk_of(vfs);
    const std::lock_guard lock(disk.mutex_);
    const auto found = disk.files_.find(name);
    *present = found != disk.files_.end() && !found->second->content.empty() ? 1 : 0;
    return SQLITE_OK;
  }

  static int full_path(sqlite3_vfs*, const char* name, int size, char* out) {
    sqlite3_snprintf(size, out, "%s", name);
    return SQLITE_OK;
  }
};

FaultyDisk::FaultyDisk() {
  static std::atomic<int> next{0};
  name_ = "faulty-" + std::to_string(next++);
  const sqlite3_vfs* system = sqlite3_vfs_find(nullptr);
  vfs_ = *system;
  vfs_.iVersion = 2;
  vfs_.szOsFile = sizeof(FaultyFile);
  vfs_.pNext = nullptr;
  vfs_.zName = name_.c_str();
  vfs_.pAppData = this;
  vfs_.xOpen = &FaultyFile::open;
  vfs_.xDelete = &FaultyFile::remove;
  vfs_.xAccess = &FaultyFile::access;
  vfs_.xFullPathname = &FaultyFile::full_path;
  sqlite3_vfs_register(&vfs_, 0);
}

FaultyDisk::~FaultyDisk() { sqlite3_vfs_unregister(&vfs_); }

void FaultyDisk::lose_power_after(int64_t count) {
  const std::lock_guard lock(mutex_);
  power_ = count;
}

void FaultyDisk::fail_once(Operation operation, int64_t count) {
  const std::lock_guard lock(mutex_);
  faults_[static_cast<int>(operation)] = count;
}

void FaultyDisk::set_capacity(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  capacity_ = bytes;
}

// Returns 1 if the operation fails, else 0.
int FaultyDisk::count(Operation operation) {
  if (operation != Operation::kRead) {
    ++writes_;
    if (power_ >= 0 && power_-- == 0) dead_ = failed_ = true;
  }
  int64_t& fault = faults_[static_cast<int>(operation)];
  const bool fails = fault >= 0 && fault-- == 0;
  failed_ = failed_ || fails;
  return dead_ || fails ? 1 : 0;
}

int64_t FaultyDisk::used() const {
  int64_t bytes = 0;
  for (const auto& [name, file] : files_) bytes += static_cast<int64_t>(file->content.size());
  return bytes;
}

void FaultyDisk::apply(std::string& content, const Write& write) {
  const auto offset = static_cast<size_t>(write.offset);
  if (write.truncated) {
    content.resize(std::min(content.size(), offset));
    return;
  }
  if (content.size() < offset + write.data.size()) content.resize(offset + write.data.size());
  content.replace(offset, write.data.size(), write.data);
}

std::unique_ptr<FaultyDisk> FaultyDisk::after_power_loss(std::mt19937& random) const {
  const std::lock_guard lock(mutex_);
  auto found = std::make_unique<FaultyDisk>();
  for (const auto& [name, file] : files_) {
    auto kept = std::make_shared<File>();
    kept->content = file->durable;
    const uint32_t kind = random() % 4;  // Nothing of the cache, all of it, or some of it, the last one twice as often.
    for (const Write& write : file->pending) {
      if (kind == 0 || (kind >= 2 && random() % 2 == 0)) continue;
      if (write.truncated || kind == 1 || random() % 2 == 0) {
        apply(kept->content, write);
        continue;
      }
      for (size_t at = 0; at < write.data.size(); at += kSector) {  // A torn write.
        if (random() % 2 == 0) continue;
        apply(kept->content, {write.offset + static_cast<int64_t>(at), write.data.substr(at, kSector), false});
      }
    }
    kept->durable = kept->content;
    found->files_[name] = std::move(kept);
  }
  return found;
}

std::unique_ptr<FaultyDisk> FaultyDisk::copy() const {
  const std::lock_guard lock(mutex_);
  auto made = std::make_unique<FaultyDisk>();
  for (const auto& [name, file] : files_) {
    auto kept = std::make_shared<File>();
    kept->content = kept->durable = file->content;
    made->files_[name] = std::move(kept);
  }
  return made;
}

std::string* FaultyDisk::content(const std::string& end_of_name) {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, file] : files_) {
    if (name.size() >= end_of_name.size() && name.ends_with(end_of_name)) return &file->content;
  }
  return nullptr;
}

int64_t FaultyDisk::writes() const {
  const std::lock_guard lock(mutex_);
  return writes_;
}

bool FaultyDisk::failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

}  // namespace titan::store
