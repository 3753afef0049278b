#pragma once

// Knows which live job has which dump folder, by every name of the folder: its paths and the id that lies in it. An id
// is not a path, so the two cannot be confused.

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "controller/job/record.h"

namespace titan::core {

class Folders {
 public:
  // Leaves other jobs what they have, except for the id that the job's nodes have read in the folder.
  void claim(const job::JobRecord& job);
  void drop(const std::string& uid);  // Frees all names of the job's folder.

  // Returns the uid of the job that has the folder that is asked for, under any of its names; nullptr: it is free.
  const std::string* holder(const job::Spec& spec) const;
  const std::string* holder_of_id(const std::string& id) const;

 private:
  const std::string* find(const std::string& name) const;

  absl::flat_hash_map<std::string, std::string> uids_;
};

}  // namespace titan::core
