#pragma once

// Waiting jobs in the order in which they are considered.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "controller/scheduler/request.h"
#include "controller/scheduler/types.h"

namespace titan::scheduler {

struct NodeInfo;
struct Shape;

// Ascending: the first job has the smallest place. No two jobs have the same one.
using Place = std::tuple<int64_t, int64_t, int64_t, std::string>;

struct Waiting {
  PendingJob job;
  Place place;
  GangRequest request;
  std::vector<NodeInfo*> held;     // Nodes of job.reserved.
  std::vector<NodeInfo*> avoided;  // Nodes of job.avoided that are not refused.
  std::vector<NodeInfo*> refused;  // Nodes of job.refused.
  Shape* shape = nullptr;
  bool lifted = false;  // Its holds are ignored while one job is being placed.
  std::string reason;   // Last reported reason.
  std::string message;
};

struct InPlace {
  using is_transparent = void;
  bool operator()(const Waiting* a, const Waiting* b) const { return a->place < b->place; }
  bool operator()(const Waiting* a, const Place& b) const { return a->place < b; }
  bool operator()(const Place& a, const Waiting* b) const { return a < b->place; }
};

// Jobs with equal requests. If the first one does not fit, none does, since the others have no advantage over it. So a
// cycle looks at the first job of each shape, and not at each job.
struct Shape {
  std::set<Waiting*, InPlace> jobs;
  uint64_t blocked_at = 0;  // Version of the pool at which the first job did not fit.

  Waiting& front() const { return **jobs.begin(); }
};

class PendingQueue {
 public:
  PendingQueue() = default;
  PendingQueue(const PendingQueue&) = delete;
  PendingQueue& operator=(const PendingQueue&) = delete;

  // True: the job is now the first of its shape, so that it may fit where the others do not.
  bool add(Waiting& job);
  void remove(Waiting& job);

  // Walk through the shapes in the order of their first jobs. Null: there are no more.
  Shape* first() const { return fronts_.empty() ? nullptr : *fronts_.begin(); }
  Shape* after(const Place& place) const;

  const std::set<Waiting*, InPlace>& jobs() const { return jobs_; }

 private:
  using Key = std::tuple<int, int, int, absl::Duration, std::set<std::string>, std::set<std::string>, std::string>;
  struct ByFront {
    using is_transparent = void;
    bool operator()(const Shape* a, const Shape* b) const { return a->front().place < b->front().place; }
    bool operator()(const Shape* a, const Place& b) const { return a->front().place < b; }
    bool operator()(const Place& a, const Shape* b) const { return a < b->front().place; }
  };
  static Key key_of(const Waiting& job);

  std::set<Waiting*, InPlace> jobs_;
  std::map<Key, Shape> shapes_;
  std::set<Shape*, ByFront> fronts_;
};

}  // namespace titan::scheduler
