#pragma once

// The controller's durable state: an ordered log of changes to keyed records. Every transaction gets the next revision.
// Nothing is acknowledged, readable or announced before it is durable, and callbacks run in log order.

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
  int64_t revision = 0;  // Revision of the last change.
};

struct Mutation {
  std::string key;
  std::optional<std::string> value;  // Nothing: delete the record.
  // The record's revision that the writer knows. 0: there is no such record. A mismatch aborts the whole transaction.
  // Not set: nothing is compared.
  std::optional<int64_t> expected_revision;
};

inline Mutation put(std::string key, std::string value) { return {std::move(key), std::move(value), std::nullopt}; }
inline Mutation erase(std::string key) { return {std::move(key), std::nullopt, std::nullopt}; }

enum class WhenFull {
  kRefuse,  // A full disk returns ResourceExhausted. For requests of clients, who can try again.
  kRetry,   // Waits in the queue until there is space. For events that have happened and must not be lost.
};

struct Transaction {
  std::vector<Mutation> mutations;
  WhenFull when_full = WhenFull::kRetry;
  // Every record whose key begins with one of these is erased before the mutations, so what they put stays. Bytes are
  // compared: "job/1" is also a prefix of "job/10". None may be empty. Costs as much as erasing each record.
  std::vector<std::string> erased_prefixes;
};

// A record that was set aside, since it cannot be read as it was written or its value makes no sense.
struct Quarantined {
  std::string key;       // Empty: it does not belong to a record.
  int64_t revision = 0;  // 0: not known.
  std::string reason;
  bool lost = true;  // Reads of the record return DataLoss until it is written or erased. False: its value is known.
  int64_t row = 0;   // Row of SQLite's log. 0: none.
  int64_t time_s = 0;
};

// Outcome of a transaction:
// - its revision: the transaction is durable as a whole, and stays.
// - Aborted: an expected revision did not match. Nothing was changed.
// - InvalidArgument: an erased prefix is empty. Nothing was changed.
// - ResourceExhausted (kRefuse only): the disk or the queue is full. Nothing was changed, and nothing will be.
// - Unavailable: not known. The store has failed, is closing or, with several controllers, another one leads. The next
//   process that opens the store may find the whole transaction or nothing of it. Readers of this store never see it.
//   This process must not continue as if either were true: it ends, and starts again from what the store holds.
//   Everything that is committed after the first Unavailable gets the same answer.
using Committed = std::function<void(const absl::StatusOr<int64_t>&)>;

// Transactions that wait for the next write.
struct QueueSize {
  int64_t transactions = 0;
  int64_t bytes = 0;
};

// One change of the log. `value` is nothing for a deletion.
struct RecordChange {
  int64_t revision = 0;
  std::string key;
  std::optional<std::string> value;
};

class Store {
 public:
  virtual ~Store() = default;

  // Queues a transaction and returns at once. `done` runs on a thread of the store, in log order, while the next
  // transactions are written. It runs on another thread of the store if the transaction is refused, and on the caller's
  // if the store has failed or closes. For kRefuse the queue is bounded in transactions and bytes: beyond that, and
  // while a full disk keeps kRetry transactions waiting, kRefuse ones are refused without any wait. kRetry transactions
  // are always accepted, since they record what has already happened: callers that make many of them watch queued() and
  // slow down.
  virtual void commit(Transaction transaction, Committed done) = 0;
  virtual QueueSize queued() const = 0;

  // Returns a random id, made with the store, which identifies the cluster.
  virtual const std::string& id() const = 0;
  // Identifies the writer: greater for each process that has opened the store, and no other process writes with it.
  // Commands carry it, so that nodes can distinguish a former leader's commands from the present one's.
  virtual int64_t epoch() const = 0;

  // Returns the revision of the last durable transaction.
  virtual int64_t revision() const = 0;

  // Errors of the three readers: DataLoss if the record was set aside, or if damage hides which records there are.
  virtual absl::StatusOr<std::optional<Record>> get(const std::string& key) const = 0;
  // Returns at most `limit` records whose key begins with `prefix` and is greater than `after`, sorted by key. Records
  // that are set aside are left out. Keys that begin with "quarantine/" belong to the store.
  virtual absl::StatusOr<std::vector<Record>> scan(const std::string& prefix, const std::string& after,
                                                   int limit) const = 0;
  // Returns changes with a greater revision, in order: whole transactions, about `limit` changes. OutOfRange: older
  // changes were compacted. Read the records again and continue from revision().
  virtual absl::StatusOr<std::vector<RecordChange>> changes(int64_t after_revision, int limit) const = 0;

  // Sets a record aside whose value makes no sense to its reader. Soon no scan returns it, its bytes are kept with the
  // reason, and get() returns DataLoss until it is written or erased. Does nothing if it was written since it was read.
  virtual void set_aside(const Record& record, const std::string& reason) = 0;
  // Returns everything that was ever set aside, oldest first. Includes damage that a reader has just found.
  virtual std::vector<Quarantined> quarantined() const = 0;

  // Returns the last revision that is known to be older than `time`, to about a minute. 0: none.
  virtual int64_t revision_before(absl::Time time) const = 0;

  // `listener` runs on a thread of the store after each group of transactions has become durable and their callbacks
  // have run. Destroy the handle to unsubscribe. This waits for a running listener.
  using Listener = std::function<void(int64_t revision)>;
  virtual std::shared_ptr<void> subscribe(Listener listener) = 0;
};

// Returns every record under a prefix, read in pages.
absl::StatusOr<std::vector<Record>> scan_all(const Store& store, const std::string& prefix);

// Erases the records under `prefix` whose last change is at revision `until` or older, in small transactions, one after
// the other. So history can be shortened while the store serves. `prefix` must not be empty. Returns the number of
// records. Blocks: never call it on the store's thread. Errors: those of scan() and commit().
absl::StatusOr<int64_t> purge(Store& store, const std::string& prefix, int64_t until);

// Returns the smallest string that is greater than every string with this prefix (ASCII prefixes only).
std::string prefix_end(std::string prefix);

}  // namespace titan::store
