#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace titan::cli {

// Whole lines out of the pieces in which logs arrive, for each rank of each attempt by itself.
class LogLines {
 public:
  using Take = std::function<bool(int attempt, int rank, const std::string& line)>;

  // Hands over each line that is whole now, without its end. False once `take` gave false.
  bool add(int attempt, int rank, std::string_view data, const Take& take);
  // What is left at the end: lines that nothing has ended.
  bool finish(const Take& take);

 private:
  std::map<std::pair<int, int>, std::string> rest_;  // By (attempt, rank).
};

}  // namespace titan::cli
