#pragma once

// Keeps all jobs and the indexes by which they are found.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "controller/core/effect.h"
#include "controller/core/live_job.h"
#include "controller/core/view.h"

namespace titan::core {

// Index by node of the jobs whose attempt has a part there, ended parts included.
class PlacedJobs {
 public:
  void add(const std::string& node, const std::string& uid) { uids_[node].insert(uid); }
  void remove(const std::string& node, const std::string& uid);
  // Returns a copy, since what callers do with the jobs may change the index.
  std::vector<std::string> on(const std::string& node) const;

 private:
  std::map<std::string, std::set<std::string>> uids_;  // Has no entry for a node without jobs.
};

// A new job that is not durable yet, and the requests that wait for it.
struct Creation {
  LiveJob job;
  std::vector<RequestId> waiting;
};

// All jobs by uid. A job is being created, then live, then ended until it is deleted. Its name is taken all the time.
class Jobs {
 public:
  // Takes the name, which must be free, and gives the job its place in the creation order.
  void register_new(job::JobRecord& job);
  void unregister(const std::string& name) { names_.erase(name); }
  void restore(const job::JobRecord& job);  // Does the same for a loaded job, which keeps its place.
  bool has_name(const std::string& name) const { return names_.contains(name); }

  void begin_creation(Creation creation);
  Creation* find_creation(const std::string& uid);
  const Creation* find_creation(const std::string& uid) const;
  Creation end_creation(const std::string& uid);  // The creation must exist.

  LiveJob& add(LiveJob job);
  LiveJob* find(const std::string& uid);  // nullptr: the job is not live.
  const LiveJob* find(const std::string& uid) const;
  LiveJob& at(const std::string& uid) { return live_.at(uid); }
  const LiveJob& at(const std::string& uid) const { return live_.at(uid); }
  std::map<std::string, LiveJob>& live() { return live_; }
  const std::map<std::string, LiveJob>& live() const { return live_; }

  // Ends the job: it is no longer live, and clients see `view`. Also replaces the view of an ended job and adds a
  // loaded one.
  void end(const std::string& uid, JobViewPtr view);
  JobViewPtr find_over(const std::string& uid) const;  // nullptr: it has not ended, or was deleted.
  const absl::flat_hash_map<std::string, JobViewPtr>& over() const { return over_; }
  void remove(const JobView& view);  // Forgets an ended job and frees its name.

 private:
  absl::flat_hash_set<std::string> names_;
  int64_t next_order_ = 1;
  std::map<std::string, Creation> creating_;
  std::map<std::string, LiveJob> live_;
  absl::flat_hash_map<std::string, JobViewPtr> over_;
};

}  // namespace titan::core
