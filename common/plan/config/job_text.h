#pragma once

// What titanctl and the controller make of a job as a person writes it.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/config/load.h"

namespace titan::config {

// As load_text(), and one without a key is refused: a job of nothing but defaults is a generator that failed or a
// variable that was not set.
std::optional<Loaded> load_job(std::string_view text, Format format, const std::string& name,
                               const std::vector<std::string>& overrides, std::vector<Problem>& problems);

// Every path that is set and belongs to whoever wrote the job: a relative one is below their working folder.
void visit_paths(JobConfig& config, const std::function<void(const std::string& key, std::string& path)>& visit);

// What a job keeps as its source: the text with the overrides in a comment.
std::string source_text(std::string text, const std::vector<std::string>& overrides);

}  // namespace titan::config
