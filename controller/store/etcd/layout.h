#pragma once

// Where the store's things are in etcd, and its requests in few words. Numbers are padded: keys sort as they do.
//
//   <prefix>leader                      who leads; its create revision is the epoch
//   <prefix>head                        the end of the log
//   <prefix>log/<revision>              an entry: transactions from that revision on
//   <prefix>part/<revision>/<draft>/<number>  parts of an entry that one value cannot hold
//   <prefix>snapshot                    names the snapshot that the log goes on from
//   <prefix>snap/<folder>/<number>      its parts
//
// A request may get to etcd twice, the second time late. Those that compare nothing but the epoch therefore write keys
// that no other request ever writes: drafts and folders are numbered by each leader.

#include <cstdint>
#include <string>

#include "etcd/rpc.pb.h"

namespace titan::store {

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

}  // namespace titan::store
