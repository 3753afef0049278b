#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

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

}  // namespace titan::core
