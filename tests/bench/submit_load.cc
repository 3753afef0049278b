// Submits jobs as fast as the controller acknowledges them, with many calls in flight, and logs every acknowledgement;
// later checks that each acknowledged job exists. Used for the durable-submit rate and for killing the controller under
// load.

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/plan/config/json.h"
#include "common/service/rpc/credentials.h"
#include "common/service/rpc/error.h"
#include "grpcpp/grpcpp.h"
#include "nlohmann/json.hpp"
#include "titan/v1/job.grpc.pb.h"

namespace titan {
namespace {

volatile sig_atomic_t stop_requested = 0;  // Set by SIGTERM: calls in flight get their answers, new ones are not made.

struct Flags {
  std::string controller = "127.0.0.1:7700";
  int in_flight = 64;
  int channels = 4;
  int64_t count = 0;
  double seconds = 5;
  std::string acknowledged;
  std::string prefix;
};

// Runs chains of calls, each started by the answer of the one before. A call that gets no answer because the controller
// is unavailable is repeated with its request_id.
class Load {
 public:
  explicit Load(const Flags& flags) : flags_(flags), log_(flags.acknowledged, std::ios::app) {
    config::JobConfig config;
    config.training.steps = 1;
    config_ = config::to_json(config);
    for (int i = 0; i < flags.channels; ++i) {
      grpc::ChannelArguments arguments;  // Separate connections, or all calls would share one.
      arguments.SetInt("titan.channel", i);
      arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
      arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2'000);  // Minimum duration of one attempt.
      arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
      arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      stubs_.push_back(v1::JobService::NewStub(
          grpc::CreateCustomChannel(flags.controller, grpc::InsecureChannelCredentials(), arguments)));
    }
  }

  int run() {
    start_ = absl::Now();
    deadline_ = flags_.count > 0 ? absl::InfiniteFuture() : start_ + absl::Seconds(flags_.seconds);
    for (int i = 0; i < flags_.in_flight; ++i) next(i % flags_.channels);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start_);
    std::sort(latencies_.begin(), latencies_.end());
    const auto percentile = [&](double p) {
      return latencies_.empty() ? 0.0
                                : 1e3 * latencies_[static_cast<size_t>(p * static_cast<double>(latencies_.size() - 1))];
    };
    std::cout
        << absl::StrFormat(
               R"({"acknowledged": %d, "seconds": %.3f, "per_second": %.1f, "in_flight": %d, "p50_ms": %.2f, "p99_ms": %.2f, "repeated": %d, "failed": %d})",
               acknowledged_, seconds, static_cast<double>(acknowledged_) / seconds, flags_.in_flight, percentile(0.5),
               percentile(0.99), repeated_, failed_)
        << std::endl;
    return failed_ == 0 ? 0 : 1;
  }

 private:
  struct Call {
    v1::CreateJobRequest request;
    v1::Job response;
    std::unique_ptr<grpc::ClientContext> context;
    absl::Time begun;
    int channel = 0;
  };

  void next(int channel) {
    int64_t number;
    {
      const std::lock_guard lock(mutex_);
      if (stop_requested != 0 || absl::Now() > deadline_ || (flags_.count > 0 && started_ >= flags_.count)) return;
      number = started_++;
      ++running_;
    }
    auto* call = new Call;
    call->channel = channel;
    call->begun = absl::Now();
    const std::string id = absl::StrCat(flags_.prefix, number);
    nlohmann::json config = config_;
    config["job"]["dump_folder"] = absl::StrCat("/nonexistent/", id);
    call->request.mutable_spec()->set_config_json(config.dump());
    call->request.mutable_spec()->set_job_id(id);
    call->request.set_request_id(
        absl::StrFormat("00000000-0000-4000-8000-%012x", std::hash<std::string>()(id) & 0xFFFFFFFFFFFF));
    send(call);
  }

  void send(Call* call) {
    call->context = std::make_unique<grpc::ClientContext>();
    call->context->set_wait_for_ready(true);
    rpc::set_deadline(*call->context, absl::Seconds(20));
    {
      // gRPC passes the call to the thread of its answer in a way that ThreadSanitizer cannot see. It does see this
      // lock, which that thread takes before it reads the call.
      const std::lock_guard lock(mutex_);
    }
    stubs_[call->channel]->async()->CreateJob(call->context.get(), &call->request, &call->response,
                                              [this, call](const grpc::Status& status) { answered(call, status); });
  }

  void answered(Call* call, const grpc::Status& status) {
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {  // The controller died during the call: repeat it.
      {
        const std::lock_guard lock(mutex_);
        ++repeated_;
      }
      return send(call);
    }
    int channel;
    {
      const std::lock_guard lock(mutex_);
      channel = call->channel;
      if (status.ok()) {
        ++acknowledged_;
        latencies_.push_back(absl::ToDoubleSeconds(absl::Now() - call->begun));
        log_ << call->response.name() << ' ' << call->response.uid() << std::endl;
      } else if (++failed_ <= 5) {
        std::cerr << "submit_load: " << status.error_message() << std::endl;
      }
    }
    delete call;
    next(channel);
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) done_.notify_all();
  }

  const Flags flags_;
  std::ofstream log_;
  nlohmann::json config_;
  std::vector<std::unique_ptr<v1::JobService::Stub>> stubs_;
  absl::Time start_, deadline_;
  std::mutex mutex_;
  std::condition_variable done_;
  int64_t started_ = 0, running_ = 0, acknowledged_ = 0, repeated_ = 0, failed_ = 0;
  std::vector<double> latencies_;
};

// Checks that every acknowledged job exists under its uid, and that no job exists twice.
int verify(const Flags& flags) {
  const std::unique_ptr<v1::JobService::Stub> stub = v1::JobService::NewStub(rpc::make_channel(flags.controller));
  std::map<std::string, std::string> jobs;
  v1::ListJobsRequest request;
  request.set_page_size(1000);
  do {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    rpc::set_deadline(context, absl::Seconds(30));
    v1::ListJobsResponse response;
    const grpc::Status status = stub->ListJobs(&context, request, &response);
    if (!status.ok()) {
      std::cerr << "submit_load: ListJobs: " << status.error_message() << std::endl;
      return 1;
    }
    for (const v1::Job& job : response.jobs()) jobs[job.name()] = job.uid();
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  std::ifstream log(flags.acknowledged);
  int64_t checked = 0, lost = 0;
  for (std::string line; std::getline(log, line); ++checked) {
    const std::pair<std::string, std::string> job = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    const auto found = jobs.find(job.first);
    if (found != jobs.end() && found->second == job.second) continue;
    if (++lost <= 5) std::cerr << "submit_load: acknowledged and lost: " << line << std::endl;
  }
  std::cout << absl::StrFormat(R"({"checked": %d, "lost": %d, "jobs": %d})", checked, lost,
                               static_cast<int64_t>(jobs.size()))
            << std::endl;
  return lost == 0 ? 0 : 1;
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  signal(SIGTERM, [](int) { titan::stop_requested = 1; });
  titan::Flags flags;
  flags.prefix = absl::StrFormat("load-%x-", static_cast<uint32_t>(std::random_device()()));
  CLI::App app{"Measures the rate of durable submits and checks that no acknowledged job is lost."};
  app.add_option("--controller", flags.controller, "HOST:PORT")->capture_default_str();
  app.add_option("--in-flight", flags.in_flight, "Calls at a time")->capture_default_str();
  app.add_option("--channels", flags.channels, "Connections")->capture_default_str();
  app.add_option("--count", flags.count, "Number of submits; 0: as many as --seconds allow")->capture_default_str();
  app.add_option("--seconds", flags.seconds, "Duration of the measurement")->capture_default_str();
  app.add_option("--acknowledged", flags.acknowledged, "File of acknowledged jobs, one a line")->required();
  bool check = false;
  app.add_flag("--verify", check, "Check the acknowledged jobs instead of submitting");
  CLI11_PARSE(app, argc, argv);
  return check ? titan::verify(flags) : titan::Load(flags).run();
}
