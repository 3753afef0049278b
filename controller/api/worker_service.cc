#include "controller/api/worker_service.h"

#include <deque>

#include "absl/strings/str_cat.h"
#include "common/base/sync/sync.h"
#include "common/service/rpc/error.h"
#include "controller/api/shared_slice.h"
#include "grpcpp/support/byte_buffer.h"

namespace titan::api {
namespace {

// Lives until gRPC has called OnDone and nothing holds it as a session.
class WorkerSession : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                      public reconcile::Session,
                      public std::enable_shared_from_this<WorkerSession> {
 public:
  WorkerSession(reconcile::Reconciler& reconciler, Routers& answers, const auth::Gate& gate, auth::Caller caller)
      : reconciler_(reconciler), answers_(answers), gate_(gate), caller_(std::move(caller)) {}

  void begin() {
    self_ = shared_from_this();
    StartRead(&bytes_);
  }

  void send(const v1::ControllerMessage& message) override {
    const grpc::Slice slice(message.SerializeAsString());
    write(grpc::ByteBuffer(&slice, 1));
  }
  void send(const v1::ControllerMessage& message, const std::shared_ptr<const std::string>& shared) override {
    const grpc::Slice parts[] = {grpc::Slice(message.SerializeAsString()), shared_slice(shared, *shared)};
    write(grpc::ByteBuffer(parts, 2));
  }

  void close(const std::string& why) override {
    finish(rpc::to_grpc(rpc::error(absl::StatusCode::kAborted, "SESSION_REPLACED", why)));
  }

  void OnReadDone(bool ok) override {
    if (!ok) return end();
    // A worker that is refused here reconnects with the certificate that its files hold by then.
    if (const absl::Status stands = gate_.stands(caller_); !stands.ok()) return finish(rpc::to_grpc(stands));
    const grpc::Status read = grpc::SerializationTraits<v1::WorkerMessage>::Deserialize(&bytes_, &incoming_);
    if (!read.ok()) return finish(read);
    if (node_.empty()) {
      if (!incoming_.has_register_()) {
        return finish(rpc::to_grpc(rpc::error(absl::StatusCode::kInvalidArgument, "REGISTER_FIRST",
                                              "the first message of a session must be Register")));
      }
      node_ = incoming_.register_().node();
      absl::Status opened = check_name(node_);
      if (opened.ok()) opened = reconciler_.open_session(incoming_.register_(), shared_from_this(), caller_.actor);
      if (!opened.ok()) {
        node_.clear();
        return finish(rpc::to_grpc(opened));
      }
    } else if (!deliver(incoming_)) {
      reconciler_.on_message(node_, shared_from_this(), incoming_);
    }
    incoming_.Clear();
    StartRead(&bytes_);
  }

  void OnWriteDone(bool ok) override {
    sync::Lock lock(mutex_);
    outgoing_.pop_front();
    if (!ok) outgoing_.clear();  // The stream is broken; its end follows.
    if (!outgoing_.empty() && !finished_) StartWrite(&outgoing_.front());
  }

  void OnDone() override {
    {
      sync::Lock lock(mutex_);
      finished_ = true;
    }
    leave();
    self_.reset();
  }

 private:
  // Passes an answer to the reader that sent the question. Returns false for a message that the core handles.
  bool deliver(const v1::WorkerMessage& message) {
    if (message.has_log()) return answers_.logs.deliver(node_, message.log());
    if (message.has_trace()) return answers_.traces.deliver(node_, message.trace());
    return false;
  }
  absl::Status check_name(const std::string& node) const {
    if (caller_.node == auth::kAllProjects || caller_.node == node) return absl::OkStatus();
    return rpc::error(
        absl::StatusCode::kPermissionDenied, "ANOTHER_NODE",
        absl::StrCat("the certificate is node ", caller_.node, "'s, and the worker registers as ", node,
                     ": start it with --node ", caller_.node, ", or issue a certificate for node ", node));
  }
  void write(const grpc::ByteBuffer& message) {
    sync::Lock lock(mutex_);
    if (finished_) return;
    outgoing_.push_back(message);
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }
  // Closes the session before the stream: the worker may see the stream's end before OnDone runs, and no question may
  // go through this session by then.
  void end() {
    leave();
    finish(grpc::Status::OK);
  }
  void leave() {
    if (!node_.empty()) reconciler_.close_session(std::exchange(node_, ""), this);
  }
  void finish(const grpc::Status& status) {
    sync::Lock lock(mutex_);
    if (finished_) return;
    finished_ = true;
    Finish(status);
  }

  reconcile::Reconciler& reconciler_;
  Routers& answers_;
  const auth::Gate& gate_;
  const auth::Caller caller_;
  std::shared_ptr<WorkerSession> self_;
  std::string node_;  // Set by the first message; used by the reading side only.
  grpc::ByteBuffer bytes_;
  v1::WorkerMessage incoming_;
  sync::Mutex mutex_;
  std::deque<grpc::ByteBuffer> outgoing_ TITAN_GUARDED_BY(mutex_);
  bool finished_ TITAN_GUARDED_BY(mutex_) = false;
};

// Ends at once with an error.
class NoSession : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit NoSession(const absl::Status& why) { Finish(rpc::to_grpc(why)); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* WorkerService::Session(
    grpc::CallbackServerContext* context) {
  const absl::StatusOr<auth::Caller> caller = gate_.admit(*context, "WorkerService.Session");
  if (!caller.ok()) return new NoSession(caller.status());
  auto session = std::make_shared<WorkerSession>(reconciler_, answers_, gate_, *caller);
  session->begin();
  return session.get();
}

}  // namespace titan::api
