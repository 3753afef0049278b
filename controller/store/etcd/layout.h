#pragma once

// Defines the keys of a store in etcd, builds requests for them, and seals each value with a checksum over key and
// body.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "etcd/rpc.pb.h"

namespace titan::store {

// The keys of a store. Numbers are padded, so that keys sort like their numbers.
//
//   <prefix>leader                      name of the leader; its create revision is the epoch
//   <prefix>head                        the end of the log
//   <prefix>log/<revision>              an entry: transactions that begin at that revision
//   <prefix>part/<revision>/<draft>/<number>  parts of an entry that one value cannot hold
//   <prefix>snapshot                    names the snapshot that the log continues from
//   <prefix>snap/<folder>/<number>      the snapshot's parts
//
// A request may reach etcd twice, the second time late. Requests that compare only the epoch therefore write keys that
// no other request ever writes: each leader numbers its drafts and folders.
class Layout {
 public:
  explicit Layout(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string head() const { return prefix_ + "head"; }
  std::string snapshot() const { return prefix_ + "snapshot"; }
  std::string log(int64_t revision = -1) const;  // -1: prefix of all entries. The same holds below.
  std::string parts(int64_t revision = -1) const;
  std::string part(int64_t revision, int64_t draft, int number) const;
  std::string snap(const std::string& folder = "") const;
  std::string snap_part(const std::string& folder, int number) const;

 private:
  std::string prefix_;
};

using Operations = google::protobuf::RepeatedPtrField<etcdserverpb::RequestOp>;

etcdserverpb::RangeRequest read_of(const std::string& key);
void add_read(Operations& operations, const std::string& key);
void add_put(Operations& operations, const std::string& key, const std::string& value, int64_t lease = 0);
// Erases the keys from `begin` up to, but not including, `end`.
void add_erase(Operations& operations, const std::string& begin, const std::string& end);
// Compare the key's create or mod revision; 0: the key must not exist.
void expect_created(etcdserverpb::Compare& compare, const std::string& key, int64_t revision);
void expect_changed(etcdserverpb::Compare& compare, const std::string& key, int64_t revision);

// Returns the value to store: a CRC-32 over key and body, then the body. The checksum reveals damage, and a value that
// belongs to another key.
std::string seal(const std::string& key, const std::string& body);
// Returns the body. Errors: DataLoss, which names the key.
absl::StatusOr<std::string> unseal(const std::string& key, const std::string& value);

template <typename Message>
std::string seal_message(const std::string& key, const Message& message) {
  return seal(key, message.SerializeAsString());
}

absl::Status not_readable(const std::string& key);

// Errors: DataLoss, which names the key.
template <typename Message>
absl::StatusOr<Message> unseal_message(const std::string& key, const std::string& value) {
  const absl::StatusOr<std::string> body = unseal(key, value);
  if (!body.ok()) return body.status();
  Message message;
  if (!message.ParseFromString(*body)) return not_readable(key);
  return message;
}

}  // namespace titan::store
