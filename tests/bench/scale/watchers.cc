#include "tests/bench/scale/watchers.h"

#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "tests/bench/scale/figures.h"

namespace titan::scale {

using Stub = grpc::TemplatedGenericStub<v1::WatchJobsRequest, grpc::ByteBuffer>;

class Watchers::Reader final : public grpc::ClientBidiReactor<v1::WatchJobsRequest, grpc::ByteBuffer> {
 public:
  Reader(Watchers& owner, bool reads, bool stuck) : owner_(owner), reads_(reads), stuck_(stuck) {}

  void begin(const std::shared_ptr<grpc::Channel>& channel, const std::string& name) {
    request_.set_name(name);
    stub_ = std::make_unique<Stub>(channel);
    stub_->PrepareBidiStreamingCall(&context_, "/titan.v1.JobService/WatchJobs", grpc::StubOptions(), this);
    StartRead(&incoming_);
    StartWriteLast(&request_, grpc::WriteOptions());
    StartCall();
  }
  void cancel() { context_.TryCancel(); }
  bool began() const { return began_; }
  bool done() const { return done_; }
  bool reads() const { return reads_; }
  int64_t jobs() const { return jobs_; }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    ++owner_.messages_;
    began_ = true;
    if (reads_) read();
    incoming_.Clear();
    if (!stuck_) StartRead(&incoming_);
  }
  void OnDone(const grpc::Status& status) override {
    owner_.dropped_ += status.error_code() == grpc::StatusCode::OUT_OF_RANGE ? 1 : 0;
    owner_.cut_off_ += status.error_code() == grpc::StatusCode::UNAVAILABLE ? 1 : 0;
    ++owner_.ended_;
    done_ = true;
  }

 private:
  void read() {
    v1::JobChange change;
    if (!grpc::SerializationTraits<v1::JobChange>::Deserialize(&incoming_, &change).ok()) return;
    if (change.has_job()) {
      int64_t& last = revisions_[change.job().uid()];
      if (change.job().revision() < last) ++owner_.out_of_order_;
      last = change.job().revision();
      jobs_ = static_cast<int64_t>(revisions_.size());
    }
    if (change.kind() == v1::JobChange::CHANGED) owner_.seen_(change);
  }

  Watchers& owner_;
  const bool reads_, stuck_;
  std::atomic<bool> began_ = false, done_ = false;
  std::atomic<int64_t> jobs_ = 0;
  v1::WatchJobsRequest request_;
  std::unique_ptr<Stub> stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;
  std::unordered_map<std::string, int64_t> revisions_;
};

Watchers::Watchers(const std::string& controller, int channels, const std::vector<std::string>& names, int read_one_in,
                   Seen seen, int stuck)
    : seen_(std::move(seen)) {
  std::vector<std::shared_ptr<grpc::Channel>> opened;
  for (int i = 0; i < channels; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt("titan.channel", i);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    opened.push_back(grpc::CreateCustomChannel(controller, grpc::InsecureChannelCredentials(), arguments));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const bool is_stuck = i < static_cast<size_t>(stuck);
    readers_.push_back(
        std::make_unique<Reader>(*this, !is_stuck && i % static_cast<size_t>(read_one_in) == 0, is_stuck));
    readers_.back()->begin(opened[i % opened.size()], names[i]);
  }
}

Watchers::~Watchers() {
  for (const auto& reader : readers_) reader->cancel();
  wait_until(absl::Seconds(30), [this] {
    return std::all_of(readers_.begin(), readers_.end(), [](const auto& reader) { return reader->done(); });
  });
}

bool Watchers::all_began() const {
  return std::all_of(readers_.begin(), readers_.end(), [](const auto& reader) { return reader->began(); });
}

int64_t Watchers::fewest_jobs() const {
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const auto& reader : readers_) {
    if (reader->reads() && !reader->done()) fewest = std::min(fewest, reader->jobs());
  }
  return fewest;
}

}  // namespace titan::scale
