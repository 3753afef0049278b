#pragma once

#include <string>

namespace titan::cli {

// Converts names of jobs to and from the form that users see. The controller's projects/PROJECT/jobs/ID is PROJECT/ID
// here, and just ID in the project that TITAN_PROJECT names ("default" unless it is set).

void set_project(const std::string& project);
// Returns the value of TITAN_PROJECT; "default" when it is not set.
const std::string& project();
bool project_is_given();

// Turns "x", "vision/x" or "projects/vision/jobs/x" into "projects/vision/jobs/x". Words of another form are returned
// unchanged, so that the controller reports what is wrong with them.
std::string full_name(const std::string& word);

// Returns the shortest form of the name that full_name() accepts.
std::string short_name(const std::string& name);

}  // namespace titan::cli
