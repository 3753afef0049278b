#pragma once

// An in-memory disk for SQLite that fails as real disks do: an error at a given operation, a full disk, or a power loss
// with writes in its cache. Each disk is a separate VFS.

#include <sqlite3.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace titan::store {

class FaultyDisk {
 public:
  enum class Operation { kRead, kWrite, kSync };

  FaultyDisk();
  ~FaultyDisk();
  FaultyDisk(const FaultyDisk&) = delete;
  FaultyDisk& operator=(const FaultyDisk&) = delete;

  // Name of the VFS for SqliteOptions.
  const std::string& name() const { return name_; }

  // Makes every operation fail after `count` more writes, truncations and syncs.
  void lose_power_after(int64_t count);
  // Makes one operation of this kind fail, after `count` that succeed. A failed sync loses its writes, like a kernel
  // that drops pages that it could not write.
  void fail_once(Operation operation, int64_t count);
  // Limits all files together to `bytes`; 0 means no limit.
  void set_capacity(int64_t bytes);

  // Returns the disk after the power came back: everything synced, and some sectors of some other writes.
  std::unique_ptr<FaultyDisk> after_power_loss(std::mt19937& random) const;
  // Returns a copy with everything written.
  std::unique_ptr<FaultyDisk> copy() const;

  // Returns a file's bytes as readers see them, for flipping bits.
  std::string* content(const std::string& end_of_name);
  int64_t writes() const;
  bool failed() const;  // Whether a fault has happened.

 private:
  friend struct FaultyFile;
  struct Write {
    int64_t offset = 0;
    std::string data;        // Bytes written.
    bool truncated = false;  // The file ends at `offset`; no bytes are written.
  };
  struct File {
    std::string content, durable;
    std::vector<Write> pending;  // Writes since the last sync.
    int shared = 0;
    const void* reserved = nullptr;
    const void* exclusive = nullptr;
    std::vector<std::unique_ptr<std::vector<char>>> memory;  // Shared memory of the log's index.
    int mappings = 0;
    int slots[8] = {};  // Shared holders, or -1.
  };

  static void apply(std::string& content, const Write& write);
  int count(Operation operation);
  int64_t used() const;

  std::string name_;
  sqlite3_vfs vfs_{};
  mutable std::recursive_mutex mutex_;
  std::map<std::string, std::shared_ptr<File>> files_;
  int64_t power_ = -1, writes_ = 0, capacity_ = 0;
  int64_t faults_[3] = {-1, -1, -1};
  bool dead_ = false, failed_ = false;
};

}  // namespace titan::store
