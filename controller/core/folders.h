#pragma once

// Maps every name of a dump folder (its paths and the id stored in it) to the live job that owns the folder. An id is
// not a path, so the two cannot be confused.

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "controller/job/record.h"

namespace titan::core {

class Folders {
 public:
  // Claims all names of the job's folder that are free. The id that the job's own nodes read in the folder is claimed
  // even if another job has it.
  void claim(const job::JobRecord& job);
  void drop(const std::string& uid);  // Frees all names of the job's folder.

  // Returns the uid of the job that owns the folder of `spec` under any of its names, or nullptr if the folder is free.
  const std::string* holder(const job::SchedulingSpec& spec) const;
  const std::string* holder_of_id(const std::string& id) const;  // Does the same for a folder's id.

 private:
  const std::string* find(const std::string& name) const;

  absl::flat_hash_map<std::string, std::string> uids_;
};

}  // namespace titan::core
