#pragma once

#include <string>

#include "common/pipeline/schedule.h"
#include "common/pipeline/simulator.h"

namespace titan::pipeline {

// One row per rank, time from left to right in columns of the shortest pass, and a table of bubbles and memory peaks:
// for a terminal.
std::string draw_text(const Schedule& schedule, const Simulation& simulation);

// The same as a picture that stands alone.
std::string draw_svg(const Schedule& schedule, const Simulation& simulation);

}  // namespace titan::pipeline
