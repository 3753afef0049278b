#pragma once

// Draws a simulated schedule as text for a terminal and as an SVG picture.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/pipeline/schedule.h"
#include "common/plan/pipeline/simulator.h"

namespace titan::pipeline {

struct DrawOptions {
  // Columns of text; 0: any number. A drawing that needs more is drawn with one letter per column instead of names.
  std::size_t width = 0;
  std::vector<std::int64_t> stage_bytes;  // Activation bytes of one microbatch, by stage; empty: not known.
};

// Draws for a terminal: one row per rank, time from left to right in columns of the shortest pass, and a table of
// bubbles and memory peaks.
std::string draw_text(const Schedule& schedule, const Simulation& simulation, const DrawOptions& options = {});

// Draws the same as a self-contained picture, with each rank's memory over time below its work.
std::string draw_svg(const Schedule& schedule, const Simulation& simulation, const DrawOptions& options = {});

// Return texts of both drawings: the title, "12.5 %", "3.20 GiB".
std::string title_of(const Schedule& schedule, const Simulation& simulation);
std::string percent_text(double share);
std::string bytes_text(std::int64_t bytes);

}  // namespace titan::pipeline
