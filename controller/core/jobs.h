#pragma once

// Keeps the live jobs and the indexes by which they are found.

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

// An index by node of the jobs whose attempt has a part there, ended parts included.
class PlacedJobs {
 public:
  void add(const std::string& node, const std::string& uid) { uids_[node].insert(uid); }
  void remove(const std::string& node, const std::string& uid);
  // Returns a copy, since what callers do with the jobs may change the index.
  std::vector<std::string> on(const std::string& node) const;

 private:
  std::map<std::string, std::set<std::string>> uids_;  // Nodes with none are not in it.
};

// A job on its way to the store.
struct Creation {
  LiveJob job;
  std::vector<RequestId> waiting;
};

// All jobs by uid. A job is being created, then lives, then is over until it is deleted. Its name is taken all the
// time.
class Jobs {
 public:
  // Takes the name, which must be free, and gives the job its place in the order of all jobs.
  void register_new(job::JobRecord& job);
  void unregister(const std::string& name) { names_.erase(name); }
  void restore(const job::JobRecord& job);  // Likewise for one that was loaded and has its place.
  bool has_name(const std::string& name) const { return names_.contains(name); }

  void begin_creation(Creation creation);
  Creation* find_creation(const std::string& uid);
  const Creation* find_creation(const std::string& uid) const;
  Creation end_creation(const std::string& uid);  // It must be there.

  LiveJob& add(LiveJob job);
  LiveJob* find(const std::string& uid);  // nullptr: it does not live.
  const LiveJob* find(const std::string& uid) const;
  LiveJob& at(const std::string& uid) { return live_.at(uid); }
  const LiveJob& at(const std::string& uid) const { return live_.at(uid); }
  std::map<std::string, LiveJob>& live() { return live_; }
  const std::map<std::string, LiveJob>& live() const { return live_; }

  // The job is over; clients may still ask for `view`. Also replaces the view of a job that is over already, and adds
  // one that was loaded.
  void end(const std::string& uid, JobViewPtr view);
  JobViewPtr find_over(const std::string& uid) const;  // nullptr: it is not over, or deleted.
  const absl::flat_hash_map<std::string, JobViewPtr>& over() const { return over_; }
  void remove(const JobView& view);  // Forgets a job that is over, and frees its name.

 private:
  absl::flat_hash_set<std::string> names_;
  int64_t next_order_ = 1;
  std::map<std::string, Creation> creating_;
  std::map<std::string, LiveJob> live_;
  absl::flat_hash_map<std::string, JobViewPtr> over_;
};

}  // namespace titan::core
