#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace titan::daemon {

// Which controller is tried next. One of them leads; the others say who does, or nothing.
class Controllers {
 public:
  explicit Controllers(std::vector<std::string> addresses) : addresses_(std::move(addresses)) {}

  const std::string& present() const { return addresses_[present_]; }
  bool several() const { return addresses_.size() > 1; }
  // How often all of them were tried since the last welcome: who finds nobody becomes patient.
  int rounds() const { return tries_ / static_cast<int>(addresses_.size()); }
  // Nobody is left to be asked in this round.
  bool round_is_over() const { return tries_ % static_cast<int>(addresses_.size()) == 0; }

  // The try at the present one is over. One that had welcomed us is tried again first: most likely it was restarted,
  // and if not, that shows at once. `leader`: whom it named; only an address of ours is followed, and once a round,
  // since what it knows may be old.
  void ended(bool welcomed, const std::string& leader) {
    if (welcomed) {
      tries_ = 0;
      followed_ = false;
      return;
    }
    if (++tries_ % static_cast<int>(addresses_.size()) == 0) followed_ = false;
    const auto named = std::find(addresses_.begin(), addresses_.end(), leader);
    if (named != addresses_.end() && named != addresses_.begin() + present_ && !followed_) {
      followed_ = true;
      present_ = static_cast<int>(named - addresses_.begin());
    } else {
      present_ = (present_ + 1) % static_cast<int>(addresses_.size());
    }
  }

 private:
  std::vector<std::string> addresses_;
  int present_ = 0;
  int tries_ = 0;  // Without a welcome.
  bool followed_ = false;
};

}  // namespace titan::daemon
