#pragma once

#include <string>

namespace titan::cli {

// Names of jobs as users write and read them. A job is projects/PROJECT/jobs/ID to the controller; here it is
// PROJECT/ID, and ID alone in the project that TITAN_PROJECT names ("default" unless it is set).

void set_project(const std::string& project);
// Of TITAN_PROJECT; "default" when it is not set.
const std::string& project();
bool project_is_given();

// "x", "vision/x" or "projects/vision/jobs/x" -> "projects/vision/jobs/x". Words of another form stay as they are, for
// the controller to say what is wrong with them.
std::string full_name(const std::string& word);

// The shortest that full_name() understands.
std::string short_name(const std::string& name);

}  // namespace titan::cli
