#include "worker/node/daemon/session.h"

#include <grpcpp/grpcpp.h>

#include <future>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/service/rpc/connection_fault.h"
#include "common/service/rpc/error.h"
#include "titan/v1/worker.grpc.pb.h"

namespace titan::daemon {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;
constexpr double kFirstPauseSeconds = 0.05;
constexpr double kMaxPauseSeconds = 1.0;
constexpr auto kConnectStep = std::chrono::milliseconds(100);
constexpr int kConnectSteps = 50;
constexpr absl::Duration kLookTimeout = absl::Milliseconds(700);
constexpr int kFirstConnectSteps = 10;  // Applies when another address may answer.

std::shared_ptr<grpc::Channel> make_channel(const std::string& controller,
                                            const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // pause() decides when to try again.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return grpc::CreateCustomChannel(controller, credentials, arguments);
}

// Returns why a channel is not connected, which the channel does not report. connection_fault() detects a TLS mismatch;
// otherwise a call gives the error.
std::string why_no_connection(v1::WorkerService::Stub& stub, const std::string& controller,
                              const rpc::Security& security) {
  if (const absl::Status fault = rpc::connection_fault(controller, security, kLookTimeout); !fault.ok())
    return absl::StrCat("no connection to ", controller, ": ", fault.message());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kConnectStep);
  const auto call = stub.Session(&context);
  v1::ControllerMessage ignored;
  while (call->Read(&ignored)) {
  }
  const grpc::Status status = call->Finish();
  const bool silent = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  return absl::StrCat("no connection to ", controller, ": ", silent ? "no answer" : status.error_message());
}

}  // namespace

struct Session::Stream {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::ControllerMessage>> calls;
};

Session::Session(Loop& loop, Controllers controllers, Credentials credentials, rpc::Security security,
                 Callbacks callbacks)
    : loop_(loop),
      credentials_(std::move(credentials)),
      security_(std::move(security)),
      callbacks_(std::move(callbacks)),
      controllers_(std::move(controllers)),
      thread_([this] { run(); }) {}

Session::~Session() {
  {
    sync::Lock lock(mutex_);
    stopping_ = true;
    if (stream_ != nullptr) stream_->context.TryCancel();
  }
  changed_.notify_all();
  thread_.join();
}

void Session::send(int64_t session, v1::WorkerMessage message) {
  {
    sync::Lock lock(mutex_);
    if (session == 0 || open_ != session) return;
    queue_.push_back(std::move(message));
  }
  changed_.notify_all();
}

void Session::reset(int64_t session, const std::string& why) {
  sync::Lock lock(mutex_);
  if (stream_ == nullptr || session == 0 || open_ != session) return;
  reset_reason_ = why;
  stream_->context.TryCancel();
}

void Session::run() {
  do {
    welcomed_ = false;
    const int64_t before = sessions_;
    const End end = run_once();
    loop_.post([this, end, session = sessions_ == before ? 0 : sessions_] {
      callbacks_.on_lost(session, end.why, end.reason);
    });
    controllers_.ended(welcomed_, end.leader);
  } while (pause());
}

// Waits before the next connection. Returns false when it is time to stop.
bool Session::pause() {
  thread_local std::mt19937 random(std::random_device{}());
  double seconds = kFirstPauseSeconds;
  const int rounds = controllers_.round_is_over() ? controllers_.rounds() : 0;
  for (int i = 0; i < rounds && seconds < kMaxPauseSeconds; ++i) seconds *= 2;
  seconds = std::min(seconds, kMaxPauseSeconds) * std::uniform_real_distribution(0.5, 1.0)(random);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return stopping_; });
  return !stopping_;
}

// Waits in short steps, so that stopping does not wait for the network. With several controllers, one that refuses is
// abandoned at once.
bool Session::connect(grpc::Channel& channel) {
  int steps = kConnectSteps;
  if (controllers_.several()) steps = std::min(steps, kFirstConnectSteps * (1 + controllers_.rounds()));
  for (int step = 0; step < steps; ++step) {
    if (channel.WaitForConnected(std::chrono::system_clock::now() + kConnectStep)) return true;
    if (controllers_.several() && channel.GetState(false) == GRPC_CHANNEL_TRANSIENT_FAILURE) return false;
    sync::Lock lock(mutex_);
    if (stopping_) return false;
  }
  return false;
}

Session::End Session::run_once() {
  // Use a new channel each time: an old one may hold a connection to a machine that is gone.
  const std::shared_ptr<grpc::Channel> channel =
      make_channel(controllers_.present(), credentials_.at(controllers_.present()));
  const std::unique_ptr<v1::WorkerService::Stub> stub = v1::WorkerService::NewStub(channel);
  if (!connect(*channel)) return {why_no_connection(*stub, controllers_.present(), security_), "", ""};
  const auto stream = std::make_shared<Stream>();
  ++sessions_;
  stream->calls = stub->Session(&stream->context);
  {
    sync::Lock lock(mutex_);
    if (stopping_) stream->context.TryCancel();
    stream_ = stream;
    reset_reason_.clear();
  }
  auto promise = std::make_shared<std::promise<v1::Register>>();
  std::future<v1::Register> ready = promise->get_future();
  loop_.post([this, promise] { promise->set_value(callbacks_.make_register()); });
  bool have_register = false;
  while (!have_register) {
    have_register = ready.wait_for(std::chrono::milliseconds(100)) == std::future_status::ready;
    sync::Lock lock(mutex_);
    if (stopping_ && !have_register) break;  // The loop has stopped and will not answer.
  }
  std::thread writer;
  if (have_register) {
    v1::WorkerMessage first;
    *first.mutable_register_() = ready.get();
    if (stream->calls->Write(first)) writer = read_all(*stream);
  }
  std::string reason;
  {
    sync::Lock lock(mutex_);
    open_ = 0;
    stream_.reset();
    reason = reset_reason_;
  }
  changed_.notify_all();
  if (!have_register) stream->context.TryCancel();  // Otherwise a read or write has found the end of the stream.
  if (writer.joinable()) writer.join();
  const grpc::Status status = stream->calls->Finish();
  if (!reason.empty()) {
    welcomed_ = false;  // Pause longer before trying a controller again that this worker cannot work with.
    return {reason, "", ""};
  }
  if (status.ok()) return {"the controller ended the session", "", ""};
  const absl::Status plain = rpc::from_grpc(status);
  End end = {status.error_message(), rpc::reason(plain), ""};
  for (const auto& [key, value] : rpc::metadata(plain)) {
    if (key == "leader") end.leader = value;
  }
  return end;
}

void Session::hand_over(const v1::ControllerMessage& message) {
  loop_.post([this, message, session = sessions_, controller = controllers_.present()] {
    callbacks_.on_message(session, controller, message);
  });
}

// Runs until the stream ends. Returns the writer thread, which starts with the Welcome.
std::thread Session::read_all(Stream& stream) {
  std::thread writer;
  v1::ControllerMessage message;
  while (stream.calls->Read(&message)) {
    if (!message.has_welcome() || welcomed_) {
      hand_over(message);
      continue;
    }
    welcomed_ = true;
    {
      sync::Lock lock(mutex_);
      queue_.clear();
      open_ = sessions_;
    }
    writer = std::thread([this, &stream] { write_all(stream); });
    hand_over(message);
  }
  return writer;
}

void Session::write_all(Stream& stream) {
  for (;;) {
    v1::WorkerMessage message;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return open_ == 0 || stopping_ || !queue_.empty(); });
      if (open_ == 0 || stopping_) return;
      message = std::move(queue_.front());
      queue_.pop_front();
    }
    if (!stream.calls->Write(message)) return;
  }
}

}  // namespace titan::daemon
