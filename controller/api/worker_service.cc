#include "controller/api/worker_service.h"

#include <deque>

#include "common/rpc/error.h"
#include "common/sync/sync.h"
#include "controller/api/bytes.h"
#include "controller/api/caller.h"
#include "grpcpp/support/byte_buffer.h"

namespace titan::api {
namespace {

// Lives until gRPC has said OnDone and nobody holds it as a session any more.
class WorkerSession : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                      public cluster::Session,
                      public std::enable_shared_from_this<WorkerSession> {
 public:
  WorkerSession(reconcile::Reconciler& reconciler, Routers& answers, std::string peer)
      : reconciler_(reconciler), answers_(answers), peer_(std::move(peer)) {}

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
    if (!ok) return finish(grpc::Status::OK);
    const grpc::Status read = grpc::SerializationTraits<v1::WorkerMessage>::Deserialize(&bytes_, &incoming_);
    if (!read.ok()) return finish(read);
    if (node_.empty()) {
      if (!incoming_.has_register_()) {
        return finish(rpc::to_grpc(rpc::error(absl::StatusCode::kInvalidArgument, "REGISTER_FIRST",
                                              "the first message of a session must be Register")));
      }
      node_ = incoming_.register_().node();
      const absl::Status opened = reconciler_.open_session(incoming_.register_(), shared_from_this(), peer_);
      if (!opened.ok()) {
        node_.clear();
        return finish(rpc::to_grpc(opened));
      }
    } else if (incoming_.has_log()) {
      answers_.logs.deliver(incoming_.log());
    } else if (incoming_.has_trace()) {
      answers_.traces.deliver(incoming_.trace());
    } else {
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
    if (!node_.empty()) reconciler_.close_session(node_, this);
    self_.reset();
  }

 private:
  void write(const grpc::ByteBuffer& message) {
    sync::Lock lock(mutex_);
    if (finished_) return;
    outgoing_.push_back(message);
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }
  void finish(const grpc::Status& status) {
    sync::Lock lock(mutex_);
    if (finished_) return;
    finished_ = true;
    Finish(status);
  }

  reconcile::Reconciler& reconciler_;
  Routers& answers_;
  const std::string peer_;
  std::shared_ptr<WorkerSession> self_;
  std::string node_;  // Set by the first message; reading side only.
  grpc::ByteBuffer bytes_;
  v1::WorkerMessage incoming_;
  sync::Mutex mutex_;
  std::deque<grpc::ByteBuffer> outgoing_ TITAN_GUARDED_BY(mutex_);
  bool finished_ TITAN_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* WorkerService::Session(
    grpc::CallbackServerContext* context) {
  auto session = std::make_shared<WorkerSession>(reconciler_, answers_, peer_actor(context->peer()));
  session->begin();
  return session.get();
}

}  // namespace titan::api
