#pragma once

#include "titan/v1/job.pb.h"

namespace titan::cli {

// One line at the bottom of a terminal that shows how far a job is, and is written over with each change. Nothing where
// stderr is not a terminal that can do so, and with -o json and yaml.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const v1::Job& job);
  // Before something else is printed.
  void clear();

 private:
  const bool works_;
  bool is_there_ = false;
};

}  // namespace titan::cli
