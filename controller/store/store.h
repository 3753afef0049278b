#pragma once

// The controller's memory: an ordered log of changes to keyed records. Every transaction gets the next revision;
// nothing is acknowledged, readable or announced before it is durable, and callbacks run in log order.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace titan::store {

struct Record {
  std::string key;
  std::string value;
  int64_t revision = 0;  // Of the last change.
};

struct Mutation {
  std::string key;
  std::optional<std::string> value;  // Nothing: delete.
  // The record's revision that the writer knows; 0: there is no such record. Anything else aborts the whole
  // transaction.
  std::optional<int64_t> expected_revision;
};

inline Mutation put(std::string key, std::string value) { return {std::move(key), std::move(value), std::nullopt}; }
inline Mutation erase(std::string key) { return {std::move(key), std::nullopt, std::nullopt}; }

enum class WhenFull {
  kRefuse,  // A full disk answers ResourceExhausted: for what a client asks, who can try again.
  kRetry,   // Keeps its place until there is room: for what already happened and must not be lost.
};

struct Transaction {
  std::vector<Mutation> mutations;
  WhenFull when_full = WhenFull::kRetry;
  // Every record whose key begins with one of these is erased, before the mutations: what they put stays. Bytes are
  // compared, "job/1" is also the beginning of "job/10". None may be empty. Costs as much as erasing each of them.
  std::vector<std::string> erased_prefixes;
};

// A record that cannot be read as it was written, or whose value makes no sense, kept aside.
struct Quarantined {
  std::string key;       // Empty: no record's.
  int64_t revision = 0;  // 0: not known.
  std::string reason;
  bool lost = true;  // Reads of the record answer DataLoss until it is written or erased. False: what it was is known.
  int64_t row = 0;   // Of SQLite's log; 0: none.
  int64_t time_s = 0;
};

// What became of a transaction:
// - its revision: it is durable, whole, and stays;
// - Aborted: an expected revision did not match; nothing was changed;
// - InvalidArgument: an erased prefix is empty; nothing was changed;
// - ResourceExhausted (kRefuse only): no room on the disk or in the queue; nothing was changed and nothing ever will
// be;
// - Unavailable: not known. The store has failed, is closing or, with several controllers, another one leads. Whoever
//   opens the store next may find the whole transaction there, or nothing of it; readers of this store never see it.
//   This process must not go on as if either were true: it ends and starts from what the store holds. Everything
//   committed after the first Unavailable is answered so too.
using Committed = std::function<void(const absl::StatusOr<int64_t>&)>;

// What waits for the next write.
struct QueueSize {
  int64_t transactions = 0;
  int64_t bytes = 0;
};

// One change of the log. `value` is nothing for a deletion.
struct Change {
  int64_t revision = 0;
  std::string key;
  std::optional<std::string> value;
};

class Store {
 public:
  virtual ~Store() = default;

  // Queues a transaction and returns at once. `done` runs on a thread of the store, in log order, while the next ones
  // are written; on another of its threads when it is refused, and on the caller's when the store has failed or closes.
  // The queue is bounded in transactions and bytes for kRefuse: beyond that, and while a full disk keeps kRetry ones
  // waiting, they are refused without waiting for anything written. kRetry ones always find a place, since they tell
  // what happened already: whoever makes many of them looks at queued() and slows down.
  virtual void commit(Transaction transaction, Committed done) = 0;
  virtual QueueSize queued() const = 0;

  // Random, made with the store: tells one cluster from another.
  virtual const std::string& id() const = 0;
  // Who writes: greater for each process that has opened the store, and no other writes with it. Commands carry it, so
  // that those of a former leader are told from those of the present one.
  virtual int64_t epoch() const = 0;

  // Revision of the last durable transaction.
  virtual int64_t revision() const = 0;

  // Errors of the three readers: DataLoss: the record was set aside, or what is damaged hides which ones there are.
  virtual absl::StatusOr<std::optional<Record>> get(const std::string& key) const = 0;
  // Records whose key begins with `prefix` and is greater than `after`, by key, at most `limit`; without those that are
  // set aside. Keys that begin with "quarantine/" are the store's own.
  virtual absl::StatusOr<std::vector<Record>> scan(const std::string& prefix, const std::string& after,
                                                   int limit) const = 0;
  // Changes with a greater revision, in order: whole transactions, about `limit` changes. OutOfRange when older ones
  // were compacted away: read the records again and go on from revision().
  virtual absl::StatusOr<std::vector<Change>> changes(int64_t after_revision, int limit) const = 0;

  // Sets a record aside whose value makes no sense to whoever read it: soon it is in no scan any more, its bytes are
  // kept with the reason, and get() answers DataLoss until it is written or erased. Nothing happens when it was written
  // since it was read.
  virtual void set_aside(const Record& record, const std::string& reason) = 0;
  // Everything that was ever set aside, oldest first; also what a reader has just found damaged.
  virtual std::vector<Quarantined> quarantined() const = 0;

  // The last revision that is known to be older than `time`, to about a minute; 0: none is.
  virtual int64_t revision_before(absl::Time time) const = 0;

  // `listener` runs on that thread after each group of transactions has become durable and their callbacks have
  // run. Unsubscribe by destroying the handle, which waits for a running listener.
  using Listener = std::function<void(int64_t revision)>;
  virtual std::shared_ptr<void> subscribe(Listener listener) = 0;
};

// Every record under a prefix, read in pages.
absl::StatusOr<std::vector<Record>> scan_all(const Store& store, const std::string& prefix);

// Erases the records under `prefix` whose last change is `until` or older, in small transactions, each after the one
// before is durable: history may be shortened while the store serves. `prefix` must not be empty. Returns how many
// records. Blocks: never on the store's own thread. Errors: those of scan() and commit().
absl::StatusOr<int64_t> purge(Store& store, const std::string& prefix, int64_t until);

// The smallest string that is greater than every string with this prefix (ASCII prefixes only).
std::string prefix_end(std::string prefix);

}  // namespace titan::store
