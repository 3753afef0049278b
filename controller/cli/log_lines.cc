#include "controller/cli/log_lines.h"

namespace titan::cli {

bool LogLines::add(int attempt, int rank, std::string_view data, const Take& take) {
  std::string& rest = rest_[{attempt, rank}];
  for (size_t end = data.find('\n'); end != std::string_view::npos; end = data.find('\n')) {
    rest.append(data.substr(0, end));
    data.remove_prefix(end + 1);
    if (!take(attempt, rank, std::exchange(rest, ""))) return false;
  }
  rest.append(data);
  return true;
}

bool LogLines::finish(const Take& take) {
  for (auto& [key, rest] : rest_) {
    if (!rest.empty() && !take(key.first, key.second, std::exchange(rest, ""))) return false;
  }
  return true;
}

}  // namespace titan::cli
