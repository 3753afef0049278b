// The controller's port with a client that sends anything: every method of every service, by reflection, so that a new
// method needs no line here.

#include "controller/api/services.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/plan/config/json.h"
#include "common/service/rpc/credentials.h"
#include "common/service/rpc/error.h"
#include "controller/api/server.h"
#include "controller/store/memory_store.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "tests/fuzz/fill.h"
#include "tests/fuzz/parts.h"
#include "tests/fuzz/scratch.h"
#include "tests/fuzz/target.h"

namespace titan::fuzz {
namespace {

using google::protobuf::MethodDescriptor;

const std::vector<const MethodDescriptor*>& all_methods() {
  static const auto* const all = [] {
    auto* const methods = new std::vector<const MethodDescriptor*>();
    for (const auto* service : api::services()) {
      for (int i = 0; i < service->method_count(); ++i) methods->push_back(service->method(i));
    }
    return methods;
  }();
  return *all;
}

std::string config_of_a_job() {
  config::JobConfig config;
  config.job.dump_folder = "/dump/a";
  config.scheduling.job_id = "a";
  return config::to_json_text(config);
}

const std::vector<std::string>& words_of_clients() {
  static const std::vector<std::string> words = {
      "a",
      "b",
      "projects/default/jobs/a",
      "projects/default/jobs/b",
      "projects/default",
      "nodes/n1",
      "n1",
      "default",
      "id1",
      "id2",
      "r1",
      "r2",
      "priority",
      "title",
      "labels",
      "labels.team",
      "team",
      "*",
      "state = RUNNING AND NOT labels:team",
      "((((",
      "priority desc, create_time",
      "[job]\ndump_folder = \"/dump/b\"\n",
      "{\"job\": {\"dump_folder\": \"/dump/c\"}}",
      "/dump/a",
      "abcdefgh",
      "alice",
      std::string(32, 's'),
      config_of_a_job(),
      "cluster",
      "",
  };
  return words;
}

// Commits at once on a separate thread, as a durable store does.
class CommittingStore : public store::MemoryStore {
 public:
  CommittingStore() : thread_([this] { run(); }) {}
  ~CommittingStore() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  void commit(store::Transaction transaction, store::Committed done) override {
    store::MemoryStore::commit(std::move(transaction), std::move(done));
    {
      std::lock_guard lock(mutex_);
      waiting_ = true;
    }
    wake_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return waiting_ || stopping_; });
      if (stopping_) return;
      waiting_ = false;
      lock.unlock();
      run_pending();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool waiting_ = false, stopping_ = false;
  std::thread thread_;
};

class Port {
 public:
  Port() : measures_(metrics_) {
    reconcile::ReconcilerOptions options;
    options.jitter = [] { return 0.0; };
    options.new_id = [this] { return absl::StrCat("id", ++ids_); };
    options.cluster = store_.id();
    reconciler_ = *reconcile::Reconciler::open(store_, clock_, options, measures_);
    api::ServerOptions server{"127.0.0.1:0", true, options.new_id, {store_.id(), clock_.now(), {}, scratch_folder()}};
    server.metrics = &metrics_;
    server.gate.insecure = true;
    server_ = *api::Server::start(*reconciler_, store_, server);
    channel_ = rpc::make_channel(absl::StrCat("127.0.0.1:", server_->port()));
  }
  ~Port() {
    channel_.reset();
    server_.reset();
    reconciler_.reset();
  }

  // Returns the status at the end of the call; OK as soon as a stream has answered.
  absl::Status call(const MethodDescriptor& method, const std::string& request) {
    grpc::GenericStub stub(channel_);
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    // An answer comes at once or when the clock moves, which it does not.
    context.set_wait_for_ready(true);  // A slow machine may take long to connect.
    rpc::set_deadline(context, method.server_streaming() ? absl::Milliseconds(30) : absl::Minutes(5));
    const auto call =
        stub.PrepareCall(&context, absl::StrCat("/", method.service()->full_name(), "/", method.name()), &queue);
    const auto done = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    bool answered = false;
    if (done()) {
      const grpc::Slice slice(request);
      call->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
      done();
      grpc::ByteBuffer answer;
      call->Read(&answer, nullptr);
      answered = done();
    }
    if (answered && method.server_streaming()) context.TryCancel();
    grpc::Status status;
    call->Finish(&status, nullptr);
    done();
    queue.Shutdown();
    void* tag = nullptr;
    for (bool ok = false; queue.Next(&tag, &ok);) {
    }
    return answered ? absl::OkStatus() : rpc::from_grpc(status);
  }

 private:
  std::atomic<int> ids_ = 0;
  FakeClock clock_;
  metrics::Metrics metrics_;
  CommittingStore store_;
  reconcile::Measures measures_;
  std::unique_ptr<reconcile::Reconciler> reconciler_;
  std::unique_ptr<api::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

std::string make_request(const MethodDescriptor& method, Parts& parts) {
  const auto* const prototype =
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(method.input_type());
  const std::unique_ptr<google::protobuf::Message> message(prototype->New());
  fill(*message, parts, words_of_clients());
  return message->SerializeAsString();
}

}  // namespace

// A few calls on a fresh controller, so that an input is reproducible; job "a" exists before them.
TITAN_FUZZ(services, 15) {
  Port port;
  v1::CreateJobRequest first;
  first.mutable_spec()->set_config_json(config_of_a_job());
  const auto& methods = all_methods();
  for (const MethodDescriptor* method : methods) {
    if (method->name() != "CreateJob") continue;
    const absl::Status made = port.call(*method, first.SerializeAsString());
    require(made.ok(), absl::StrCat("a job is made: ", made.ToString()));
  }
  Parts parts(bytes);
  for (int i = 0; i < 8 && !parts.empty(); ++i) {
    const MethodDescriptor& method = *methods[parts.byte() % methods.size()];
    const absl::Status status = port.call(method, make_request(method, parts));
    require(!absl::IsInternal(status) && !absl::IsUnknown(status) && !absl::IsDataLoss(status),
            absl::StrCat(method.full_name(), " blames itself: ", status.ToString()));
    if (!method.server_streaming()) {
      require(!absl::IsDeadlineExceeded(status), absl::StrCat(method.full_name(), " does not answer"));
    }
    require(status.message().size() < 64 << 10, "an error can be read");
  }
}

}  // namespace titan::fuzz
