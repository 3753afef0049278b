#pragma once

#include <string>
#include <vector>

#include "titan/v1/job.pb.h"

namespace titan::cli {

// A rank that holds up its peers, and by how much.
std::string slow_text(const v1::SlowRank& slow);

// Jobs for people: the table of `titanctl list` and the page of `titanctl describe`, which ends with what went wrong
// lately.
std::string list_text(const std::vector<v1::Job>& jobs);
std::string describe_text(const v1::Job& job, const std::vector<v1::Event>& troubles);

}  // namespace titan::cli
