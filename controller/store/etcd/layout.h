#pragma once

// Defines the keys of a store in etcd, builds requests for them in few words, and seals each value with a checksum over
// key and body.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "etcd/rpc.pb.h"

namespace titan::store {

// The keys of a store. Numbers are padded, so that keys sort as they do.
//
//   <prefix>leader                      who leads; its create revision is the epoch
//   <prefix>head                        the end of the log
//   <prefix>log/<revision>              an entry: transactions from that revision on
//   <prefix>part/<revision>/<draft>/<number>  parts of an entry that one value cannot hold
//   <prefix>snapshot                    names the snapshot that the log continues from
//   <prefix>snap/<folder>/<number>      its parts
//
// A request may get to etcd twice, the second time late. Those that compare nothing but the epoch therefore write keys
// that no other request ever writes: drafts and folders are numbered by each leader.
class Layout {
 public:
  explicit Layout(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string head() const { return prefix_ + "head"; }
  std::string snapshot() const { return prefix_ + "snapshot"; }
  std::string log(int64_t revision = -1) const;  // -1: what all of them begin with; so below.
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
// From `begin` up to, not including, `end`.
void add_erase(Operations& operations, const std::string& begin, const std::string& end);
// 0: there is no such key.
void expect_created(etcdserverpb::Compare& compare, const std::string& key, int64_t revision);
void expect_changed(etcdserverpb::Compare& compare, const std::string& key, int64_t revision);

// A value as it lies in etcd: the body behind a CRC-32 over key and body, so that damage and a value under another key
// are found.
std::string seal(const std::string& key, const std::string& body);
// The body. Errors: DataLoss naming the key.
absl::StatusOr<std::string> unseal(const std::string& key, const std::string& value);

template <typename Message>
std::string seal_message(const std::string& key, const Message& message) {
  return seal(key, message.SerializeAsString());
}

absl::Status not_readable(const std::string& key);

// Errors: DataLoss naming the key.
template <typename Message>
absl::StatusOr<Message> unseal_message(const std::string& key, const std::string& value) {
  const absl::StatusOr<std::string> body = unseal(key, value);
  if (!body.ok()) return body.status();
  Message message;
  if (!message.ParseFromString(*body)) return not_readable(key);
  return message;
}

}  // namespace titan::store
