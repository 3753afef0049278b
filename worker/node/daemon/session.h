#pragma once

// Keeps the stream to the controller that leads: connects, registers, and tries one controller after another.

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

// The stream to the controller that leads: connects, registers, and connects again for ever, to one of its addresses
// after the other, with growing and jittered pauses.
// Reading and writing have a thread each; what arrives is handed to the loop.
class Session {
 public:
  using Credentials = std::map<std::string, std::shared_ptr<grpc::ChannelCredentials>>;  // By address.
  struct Callbacks {                                                                     // All on the loop thread.
    std::function<v1::Register()> make_register;
    // Sessions are numbered from 1. A message may come before the welcome of its session.
    std::function<void(int64_t session, const std::string& controller, const v1::ControllerMessage&)> on_message;
    // Also for a try that made no connection: session 0. `reason`: the controller's own, UPPER_SNAKE, when it ended the
    // session.
    std::function<void(int64_t session, const std::string& why, const std::string& reason)> on_lost;
  };

  // `security`: what the credentials are made of, to say why a connection fails.
  Session(Loop& loop, Controllers controllers, Credentials credentials, rpc::Security security, Callbacks callbacks);
  ~Session();  // Ends the stream and joins the threads; the loop may have stopped before.
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Queues a message; dropped when that session does not stand any more.
  void send(int64_t session, v1::WorkerMessage message);
  // Gives up that session, so that a new one is tried.
  void reset(int64_t session, const std::string& why);

 private:
  struct Stream;
  void run();
  struct End {  // Why a session ended.
    std::string why;
    std::string reason;
    std::string leader;  // Whom a controller that only stands by named.
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
  int64_t open_ TITAN_GUARDED_BY(mutex_) = 0;  // Number of the session that stands: welcomed, and not lost; 0: none.
  bool stopping_ TITAN_GUARDED_BY(mutex_) = false;
  Controllers controllers_;  // Only the session thread uses it, as what follows.
  int64_t sessions_ = 0;     // So far.
  bool welcomed_ = false;    // In the last run, and not given up since;
  std::thread thread_;
};

}  // namespace titan::daemon
