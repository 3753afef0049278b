#pragma once

// The stream to the leading controller: connects, registers, and tries one controller after another.

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/sync/sync.h"
#include "common/service/rpc/credentials.h"
#include "titan/v1/worker.pb.h"
#include "worker/node/daemon/loop.h"

namespace grpc {
class Channel;
class ChannelCredentials;
}  // namespace grpc

namespace titan::daemon {

// Selects the controller to try next. One of them leads; the others may name the leader.
class Controllers {
 public:
  explicit Controllers(std::vector<std::string> addresses) : addresses_(std::move(addresses)) {}

  const std::string& present() const { return addresses_[present_]; }
  bool several() const { return addresses_.size() > 1; }
  // Returns the number of complete rounds since the last Welcome. The pauses grow with it.
  int rounds() const { return tries_ / static_cast<int>(addresses_.size()); }
  // Returns whether all controllers were tried in this round.
  bool round_is_over() const { return tries_ % static_cast<int>(addresses_.size()) == 0; }

  // The attempt at present() is over. A controller that had sent a Welcome is tried again first: most likely it was
  // restarted, and if not, the retry fails quickly. `leader`: the address that it named. It is followed only if it is
  // in the list, and once per round, because the information may be old.
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
  int tries_ = 0;  // Attempts without a Welcome.
  bool followed_ = false;
};

// The stream to the leading controller. Connects, registers, and reconnects for ever, to one address after another,
// with growing and jittered pauses. One thread reads and one writes; received messages are posted to the loop.
class Session {
 public:
  using Credentials = std::map<std::string, std::shared_ptr<grpc::ChannelCredentials>>;  // By address.
  struct Callbacks {                                                                     // All run on the loop thread.
    std::function<v1::Register()> make_register;
    // Sessions are numbered from 1. Messages may arrive before the Welcome of their session.
    std::function<void(int64_t session, const std::string& controller, const v1::ControllerMessage&)> on_message;
    // Also called with session 0 when no connection was made. `reason`: UPPER_SNAKE, set if the controller ended the
    // session.
    std::function<void(int64_t session, const std::string& why, const std::string& reason)> on_lost;
  };

  // `security`: the sources of the credentials, to explain why a connection fails.
  Session(Loop& loop, Controllers controllers, Credentials credentials, rpc::Security security, Callbacks callbacks);
  ~Session();  // Ends the stream and joins the threads; the loop may have stopped before.
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Queues a message, or drops it if that session is not up.
  void send(int64_t session, v1::WorkerMessage message);
  // Closes that session, so that a new one is opened.
  void reset(int64_t session, const std::string& why);

 private:
  struct Stream;
  void run();
  struct End {  // Why a session ended.
    std::string why;
    std::string reason;
    std::string leader;  // The leader, as named by a standby controller.
  };
  End run_once();
  bool connect(grpc::Channel& channel);
  std::thread read_all(Stream& stream);
  void hand_over(const v1::ControllerMessage& message);
  void write_all(Stream& stream);
  bool pause();

  Loop& loop_;
  const Credentials credentials_;
  const rpc::Security security_;
  const Callbacks callbacks_;
  sync::Mutex mutex_;
  sync::Condition changed_;
  std::deque<v1::WorkerMessage> queue_ TITAN_GUARDED_BY(mutex_);
  std::shared_ptr<Stream> stream_ TITAN_GUARDED_BY(mutex_);
  std::string reset_reason_ TITAN_GUARDED_BY(mutex_);
  int64_t open_ TITAN_GUARDED_BY(mutex_) = 0;  // Number of the session that is up: welcomed and not lost. 0: none.
  bool stopping_ TITAN_GUARDED_BY(mutex_) = false;
  Controllers controllers_;  // Used only by the session thread, like the following members.
  int64_t sessions_ = 0;     // Number of sessions so far.
  bool welcomed_ = false;    // The last session had a Welcome and was not reset.
  std::thread thread_;
};

}  // namespace titan::daemon
