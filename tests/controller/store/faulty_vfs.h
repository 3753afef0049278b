#pragma once

// A disk in memory for SQLite that fails as disks do: by an error at a given operation, by being full, by losing power
// with writes in its cache. Each disk is a VFS of its own.

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

  // The VFS' name, for SqliteOptions.
  const std::string& name() const { return name_; }

  // From the `count`th write, truncation or sync on nothing works any more.
  void lose_power_after(int64_t count);
  // The `count`th operation of this kind fails once. What a failed sync should have written is lost, as it is when a
  // kernel drops the pages it could not write.
  void fail_once(Operation operation, int64_t count);
  // No file grows beyond `bytes` together; 0: no limit.
  void set_capacity(int64_t bytes);

  // The disk as it is found after the power came back: what was synced, and of what was not some sectors of some
  // writes.
  std::unique_ptr<FaultyDisk> after_power_loss(std::mt19937& random) const;
  // The same, everything written.
  std::unique_ptr<FaultyDisk> copy() const;

  // A file's bytes, as readers see them; for flipping them.
  std::string* content(const std::string& end_of_name);
  int64_t writes() const;
  bool failed() const;  // A fault happened.

 private:
  friend struct FaultyFile;
  struct Write {
    int64_t offset = 0;
    std::string data;        // What was written,
    bool truncated = false;  // or the file ends at `offset`.
  };
  struct File {
    std::string content, durable;
    std::vector<Write> pending;  // Since the last sync.
    int shared = 0;
    const void* reserved = nullptr;
    const void* exclusive = nullptr;
    std::vector<std::unique_ptr<std::vector<char>>> memory;  // Shared, of the log's index.
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
