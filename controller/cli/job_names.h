#pragma once

#include <string>

namespace titan::cli {

// Names of jobs as users write and read them. The controller's projects/PROJECT/jobs/ID is PROJECT/ID here, and ID
// alone in the project that TITAN_PROJECT names ("default" unless it is set).

void set_project(const std::string& project);
// Value of TITAN_PROJECT; "default" when it is not set.
const std::string& project();
bool project_is_given();

// Turns "x", "vision/x" or "projects/vision/jobs/x" into "projects/vision/jobs/x". Words of another form stay as they
// are, so that the controller reports what is wrong with them.
std::string full_name(const std::string& word);

// The shortest name that full_name() understands.
std::string short_name(const std::string& name);

}  // namespace titan::cli
