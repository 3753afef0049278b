// The load of a large cluster on one controller: workers, watchers, a job that fails, a controller that restarts. Each
// subcommand prints one line of JSON per phase and exits with 1 if anything was lost. See scale.py.

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/plan/config/json.h"
#include "common/service/rpc/credentials.h"
#include "grpcpp/grpcpp.h"
#include "tests/bench/scale/fleet.h"
#include "tests/bench/scale/watchers.h"
#include "titan/v1/job.grpc.pb.h"
#include "titan/v1/node.grpc.pb.h"

namespace titan::scale {
namespace {

using nlohmann::json;

struct Flags {
  std::string controller = "127.0.0.1:7700";
  int controller_pid = 0;
  int workers = 100;
  int devices = 8;
  int channels = 8;
  double seconds = 10;
  int jobs = 0;
  int ranks = 0;  // Ranks of each job. 0: all devices of the workers, shared evenly.
  int watchers = 1000;
  int changing = 100;
  int rate = 100;
  int read_one_in = 20;
  int stuck = 0;
  bool own = false;
  int finished = 10'000;
  int first = 0;
  int in_flight = 64;
};

constexpr absl::Duration kTimeout = absl::Minutes(3);

void print_json(const json& what) { std::cout << what.dump() << std::endl; }

int fail(const std::string& why) {
  std::cerr << "scale_load: " << why << std::endl;
  return 1;
}

v1::CreateJobRequest job_request(const std::string& id, int ranks) {
  config::JobConfig config;
  config.training.steps = 1'000'000;
  config.resources.device = "cpu";
  config.resources.ranks = ranks;
  config.training.global_batch_size = ranks;
  config.training.local_batch_size = 1;
  config.job.dump_folder = "/nonexistent/" + id;
  v1::CreateJobRequest request;
  request.mutable_spec()->set_config_json(config::to_json(config).dump());
  request.mutable_spec()->set_job_id(id);
  request.set_request_id(
      absl::StrFormat("00000000-0000-4000-8000-%012x", std::hash<std::string>()(id) & 0xFFFFFFFFFFFF));
  return request;
}

// Submits the jobs one after the other. Returns the error; empty if all were accepted.
std::string submit(v1::JobService::Stub& stub, const std::string& prefix, int count, int ranks) {
  for (int i = 0; i < count; ++i) {
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(60));
    v1::Job job;
    const grpc::Status status = stub.CreateJob(&context, job_request(absl::StrCat(prefix, i), ranks), &job);
    if (!status.ok()) return status.error_message();
  }
  return "";
}

// Counts the nodes by state.
std::map<std::string, int> nodes_by_state(const std::string& controller) {
  const auto stub = v1::NodeService::NewStub(rpc::make_channel(controller));
  std::map<std::string, int> states;
  v1::ListNodesRequest request;
  request.set_page_size(1000);
  do {
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(30));
    context.set_wait_for_ready(true);  // Many connections are made on few cores.
    v1::ListNodesResponse response;
    const grpc::Status listed = stub->ListNodes(&context, request, &response);
    if (!listed.ok()) return {{listed.error_message(), 0}};
    for (const v1::Node& node : response.nodes()) ++states[v1::Node::State_Name(node.state())];
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return states;
}

// A fleet after all its workers registered.
struct Cluster {
  explicit Cluster(const Flags& flags)
      : process(flags.controller_pid),
        fleet({flags.controller, flags.workers, flags.devices, flags.channels, /*beats_show_steps=*/true}),
        jobs(v1::JobService::NewStub(rpc::make_channel(flags.controller))) {}

  std::string start(const Flags& flags) {
    const absl::Time begun = absl::Now();
    const double cpu = process.cpu_seconds();
    fleet.connect();
    if (!wait_until(kTimeout, [&] { return fleet.welcomed(1) == fleet.size(); })) {
      return absl::StrCat(fleet.welcomed(1), " of ", fleet.size(), " workers were welcomed");
    }
    const double registered = absl::ToDoubleSeconds(absl::Now() - begun);
    const double registered_cpu = process.cpu_seconds() - cpu;
    const int ranks = flags.ranks > 0 ? flags.ranks : flags.jobs == 0 ? 0 : flags.workers * flags.devices / flags.jobs;
    if (std::string bad = submit(*jobs, "scale-", flags.jobs, ranks); !bad.empty()) return bad;
    parts = flags.jobs * ((ranks + flags.devices - 1) / flags.devices);
    if (!wait_until(kTimeout, [&] { return fleet.started() == parts; })) {
      return absl::StrCat(fleet.started(), " of ", parts, " parts were started");
    }
    print_json({{"phase", "ready"},
                {"workers", fleet.size()},
                {"registered_s", registered},
                {"registration_cpu_s", registered_cpu},
                {"jobs", flags.jobs},
                {"ranks_each", ranks},
                {"started_s", absl::ToDoubleSeconds(absl::Now() - begun) - registered}});
    return "";
  }

  Process process;
  Fleet fleet;
  std::unique_ptr<v1::JobService::Stub> jobs;
  int parts = 0;
};

int run_workers(const Flags& flags) {
  Cluster cluster(flags);
  if (const std::string bad = cluster.start(flags); !bad.empty()) return fail(bad);
  Fleet& fleet = cluster.fleet;
  // Waits a second for the work that registration left, then measures.
  const int64_t before = fleet.acks();
  if (!wait_until(kTimeout, [&] { return fleet.acks() > before + fleet.size(); }))
    return fail("the workers' heartbeats were not acknowledged in time");
  fleet.ack_latencies().clear();
  const double cpu = cluster.process.cpu_seconds();
  const int64_t beats = fleet.beats();
  const absl::Time begun = absl::Now();
  absl::SleepFor(absl::Seconds(flags.seconds));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begun);
  const double used = cluster.process.cpu_seconds() - cpu;
  const int64_t sent = fleet.beats();
  const bool all_acked = wait_until(absl::Seconds(30), [&] { return fleet.acks() >= sent; });
  const std::map<std::string, int> states = nodes_by_state(flags.controller);
  const bool none_lost = fleet.disconnects() == 0 && states.size() == 1 && states.count("READY") == 1;
  print_json({{"phase", "beats"},
              {"seconds", seconds},
              {"beats_per_second", static_cast<double>(sent - beats) / seconds},
              {"controller_cores", used / seconds},
              {"ack", fleet.ack_latencies().figures()},
              {"all_acked", all_acked},
              {"nodes", states},
              {"disconnects", fleet.disconnects()},
              {"stops", fleet.stops()},
              {"rss_mib", cluster.process.mebibytes("VmRSS")}});
  if (!all_acked || !none_lost || fleet.stops() > 0)
    return fail("a heartbeat was not acknowledged, or a node was lost");
  return 0;
}

int run_failure(const Flags& flags) {
  Flags one = flags;
  one.jobs = 1;
  Cluster cluster(one);
  if (const std::string bad = cluster.start(one); !bad.empty()) return fail(bad);
  Fleet& fleet = cluster.fleet;
  const int64_t before = fleet.acks();
  if (!wait_until(kTimeout, [&] { return fleet.acks() > before + 2 * fleet.size(); }))
    return fail("the workers' heartbeats were not acknowledged in time");
  const double rss = cluster.process.mebibytes("VmRSS"), cpu = cluster.process.cpu_seconds();
  const absl::Time begun = absl::Now();
  fleet.fail_all(absl::Seconds(flags.seconds));
  if (!wait_until(kTimeout, [&] { return fleet.prepared(2).count >= cluster.parts; })) {
    return fail(absl::StrCat("attempt 2 was prepared on ", fleet.prepared(2).count, " of ", cluster.parts, " nodes"));
  }
  const Fleet::Prepared next = fleet.prepared(2);
  const absl::Time ended = fleet.last_exit();
  const double used = cluster.process.cpu_seconds() - cpu;
  if (!wait_until(kTimeout, [&] { return fleet.started() == cluster.parts; })) return fail("attempt 2 did not start");
  print_json({{"phase", "restarted"},
              {"ranks", flags.workers * flags.devices},
              {"exits_within_s", absl::ToDoubleSeconds(ended - begun)},
              {"last_exit_to_first_prepare_s", absl::ToDoubleSeconds(next.first - ended)},
              {"last_exit_to_last_prepare_s", absl::ToDoubleSeconds(next.last - ended)},
              {"started_again_s", absl::ToDoubleSeconds(absl::Now() - ended)},
              {"controller_cpu_s", used},
              {"rss_before_mib", rss},
              {"rss_peak_mib", cluster.process.mebibytes("VmHWM")},
              {"disconnects", fleet.disconnects()}});
  return fleet.disconnects() == 0 ? 0 : fail("a worker was disconnected");
}

// Between "ready" and the end, scale.py kills the controller and restarts it at the same address.
int run_recovery(const Flags& flags) {
  Cluster cluster(flags);
  if (const std::string bad = cluster.start(flags); !bad.empty()) return fail(bad);
  Fleet& fleet = cluster.fleet;
  if (!wait_until(kTimeout, [&] { return fleet.welcomed(2) == fleet.size(); })) {
    return fail(absl::StrCat(fleet.welcomed(2), " of ", fleet.size(), " workers reconnected"));
  }
  const double back = absl::ToDoubleSeconds(absl::Now() - fleet.first_disconnect());
  const int prepared = fleet.prepared(1).count;
  const absl::Time requested_at = absl::Now();
  if (std::string bad = submit(*cluster.jobs, "probe-", 1, 1); !bad.empty()) return fail(bad);
  if (!wait_until(kTimeout, [&] { return fleet.prepared(1).count > prepared; }))
    return fail("the controller did not schedule the probe job in time");
  const double scheduled = absl::ToDoubleSeconds(absl::Now() - requested_at);
  // Waits for more than a lease, because nothing may be lost later either.
  absl::SleepFor(absl::Seconds(flags.seconds));
  const std::map<std::string, int> states = nodes_by_state(flags.controller);
  v1::ListJobsRequest request;
  request.set_page_size(1000);
  v1::ListJobsResponse response;
  grpc::ClientContext context;
  rpc::set_deadline(context, absl::Seconds(30));
  const grpc::Status listed = cluster.jobs->ListJobs(&context, request, &response);
  int again = 0;
  for (const v1::Job& job : response.jobs()) again += job.attempts_size() > 1 ? 1 : 0;
  print_json({{"phase", "back"},
              {"workers", fleet.size()},
              {"all_back_s", back},
              {"probe_scheduled_s", scheduled},
              {"nodes", states},
              {"stops", fleet.stops()},
              {"jobs_restarted", again}});
  const bool untouched = listed.ok() && again == 0 && fleet.stops() == 0;
  const bool none_lost = states.size() == 1 && states.count("READY") == 1;
  return untouched && none_lost ? 0 : fail("a node was lost or a healthy attempt was touched");
}

// Lets `changing` jobs of one rank report steps, alternating, at `rate` steps per second in total.
int run_watch(const Flags& flags) {
  Flags few = flags;
  few.workers = flags.changing;
  few.devices = few.ranks = 1;
  Process process(flags.controller_pid);
  Fleet fleet({flags.controller, few.workers, 1, 2, /*beats_show_steps=*/false});
  fleet.connect();
  const auto stub = v1::JobService::NewStub(rpc::make_channel(flags.controller));
  if (!wait_until(kTimeout, [&] { return fleet.welcomed(1) == fleet.size(); }))
    return fail("not all workers registered in time");
  if (std::string bad = submit(*stub, "scale-", flags.changing, 1); !bad.empty()) return fail(bad);
  if (!wait_until(kTimeout, [&] { return fleet.started() == flags.changing; }))
    return fail("not all jobs started in time");

  const auto changes = static_cast<size_t>(flags.rate * flags.seconds);
  std::mutex mutex;
  std::vector<absl::Time> sent_at(changes + 1);
  std::vector<int64_t> seen(changes + 1);
  Latencies latencies;
  std::vector<std::string> names;
  for (int i = 0; i < flags.watchers; ++i) {
    names.push_back(flags.own ? absl::StrCat("projects/default/jobs/scale-", i % flags.changing) : "");
  }
  const auto look = [&](const v1::JobChange& change) {
    const auto step = static_cast<size_t>(change.job().progress().step());
    const std::lock_guard lock(mutex);
    // Each number is reported by one job, once.
    if (step == 0 || step > changes || change.job().pending_reason() != "") return;
    ++seen[step];
    latencies.add(absl::Now() - sent_at[step]);
  };
  Watchers watchers(flags.controller, flags.channels, names, flags.read_one_in, look, flags.stuck);
  if (!wait_until(kTimeout, [&] { return watchers.all_began(); })) return fail("not all watches began");
  const double cpu = process.cpu_seconds();
  const absl::Time begun = absl::Now();
  for (size_t step = 1; step <= changes; ++step) {
    absl::SleepFor(begun + absl::Seconds(static_cast<double>(step) / flags.rate) - absl::Now());
    {
      const std::lock_guard lock(mutex);
      sent_at[step] = absl::Now();
    }
    fleet.tell_step(static_cast<int>(step % static_cast<size_t>(flags.changing)), static_cast<int64_t>(step));
  }
  int64_t readers = 0, expected = 0;
  for (int i = flags.stuck; i < flags.watchers; ++i) {
    if (i % flags.read_one_in != 0) continue;
    ++readers;
    for (size_t step = 1; step <= changes; ++step) {
      if (!flags.own || static_cast<int>(step % static_cast<size_t>(flags.changing)) == i % flags.changing) ++expected;
    }
  }
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return std::accumulate(seen.begin(), seen.end(), int64_t{0});
  };
  const bool complete = wait_until(absl::Minutes(1), [&] { return count() >= expected; });
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begun);
  print_json({{"phase", "watched"},
              {"watchers", watchers.size()},
              {"reading", readers},
              {"stuck", flags.stuck},
              {"own_job_each", flags.own},
              {"changes_per_second", static_cast<double>(changes) / seconds},
              {"messages_per_second", static_cast<double>(watchers.messages()) / seconds},
              {"change_to_seen", latencies.figures()},
              {"controller_cores", (process.cpu_seconds() - cpu) / seconds},
              {"expected", expected},
              {"seen", count()},
              {"out_of_order", watchers.out_of_order()},
              {"ended", watchers.ended()}});
  const bool well = complete && watchers.out_of_order() == 0 && watchers.ended() == 0;
  return well ? 0 : fail("a change was missed or came out of order");
}

// Watches all jobs until standard input ends and every watcher with an open stream has seen the given number of jobs.
int run_follow(const Flags& flags) {
  const std::vector<std::string> names(static_cast<size_t>(flags.watchers));
  Watchers watchers(flags.controller, flags.channels, names, /*read_one_in=*/1, [](const v1::JobChange&) {});
  if (!wait_until(kTimeout, [&] { return watchers.all_began(); })) return fail("not all watches began");
  print_json({{"phase", "following"}});
  int64_t jobs = 0;
  std::cin >> jobs;
  const bool complete = wait_until(kTimeout, [&] { return watchers.fewest_jobs() >= jobs; });
  print_json({{"phase", "followed"},
              {"watchers", watchers.size()},
              {"messages", watchers.messages()},
              {"fewest_jobs", watchers.ended() == watchers.size() ? 0 : watchers.fewest_jobs()},
              {"behind", watchers.dropped()},
              {"cut_off", watchers.cut_off()},
              {"ended", watchers.ended()},
              {"out_of_order", watchers.out_of_order()}});
  const bool all_accounted = watchers.dropped() + watchers.cut_off() == watchers.ended();
  return complete && all_accounted && watchers.out_of_order() == 0
             ? 0
             : fail("a watcher missed an event without a notice from the controller");
}

// Makes finished jobs by creating and cancelling many at a time.
class Filler {
 public:
  Filler(const Flags& flags) : flags_(flags), stub_(v1::JobService::NewStub(rpc::make_channel(flags.controller))) {}

  int run() {
    const absl::Time begun = absl::Now();
    for (int i = 0; i < flags_.in_flight; ++i) next();
    wait_until(absl::Hours(1), [this] { return running_ == 0; });
    print_json({{"phase", "filled"},
                {"finished", done_.load()},
                {"failed", failed_.load()},
                {"seconds", absl::ToDoubleSeconds(absl::Now() - begun)}});
    return failed_ == 0 ? 0 : fail("some jobs could not be created");
  }

 private:
  struct Call {
    grpc::ClientContext create, cancel;
    v1::CreateJobRequest request;
    v1::CancelJobRequest over;
    v1::Job job;
  };

  void next() {
    const int number = next_++;
    if (number >= flags_.finished) return;
    ++running_;
    auto* call = new Call;
    call->request = job_request(absl::StrCat("done-", flags_.first + number), 1);
    rpc::set_deadline(call->create, absl::Seconds(60));
    stub_->async()->CreateJob(&call->create, &call->request, &call->job, [this, call](const grpc::Status& status) {
      if (!status.ok()) return end(call, status);
      call->over.set_name(call->job.name());
      call->over.set_now(true);
      rpc::set_deadline(call->cancel, absl::Seconds(60));
      stub_->async()->CancelJob(&call->cancel, &call->over, &call->job,
                                [this, call](const grpc::Status& cancelled) { end(call, cancelled); });
    });
  }
  void end(Call* call, const grpc::Status& status) {
    if (!status.ok() && failed_ == 0) std::cerr << "scale_load: " << status.error_message() << std::endl;
    ++(status.ok() ? done_ : failed_);
    delete call;
    next();
    --running_;
  }

  const Flags flags_;
  std::unique_ptr<v1::JobService::Stub> stub_;
  std::atomic<int> next_ = 0, running_ = 0, done_ = 0, failed_ = 0;
};

}  // namespace
}  // namespace titan::scale

int main(int argc, char** argv) {
  using namespace titan::scale;
  Flags flags;
  CLI::App app{"Puts the load of a large cluster on one controller and measures it."};
  app.require_subcommand(1);
  app.add_option("--controller", flags.controller, "HOST:PORT")->capture_default_str();
  app.add_option("--controller-pid", flags.controller_pid,
                 "Process id of the controller, to read its CPU time and memory");
  app.add_option("--channels", flags.channels, "Connections")->capture_default_str();
  const auto add_fleet = [&](CLI::App* command) {
    command->add_option("--workers", flags.workers, "Workers, each a stream")->capture_default_str();
    command->add_option("--devices", flags.devices, "Devices of each worker")->capture_default_str();
    command->add_option("--jobs", flags.jobs, "Jobs that run on them")->capture_default_str();
    command->add_option("--ranks", flags.ranks, "Ranks of each job; 0: the jobs share all devices")
        ->capture_default_str();
    command->add_option("--seconds", flags.seconds, "See the subcommand")->capture_default_str();
    return command;
  };
  const auto* workers = add_fleet(app.add_subcommand("workers", "Workers that beat, for --seconds"));
  const auto* failure = add_fleet(app.add_subcommand("failure", "One job on all of them fails within --seconds"));
  const auto* recovery =
      add_fleet(app.add_subcommand("recovery", "The controller is restarted by the caller once they are ready"));
  CLI::App* watch = app.add_subcommand("watch", "Watchers of jobs that change");
  watch->add_option("--watchers", flags.watchers, "Streams")->capture_default_str();
  watch->add_option("--jobs", flags.changing, "Jobs that change")->capture_default_str();
  watch->add_option("--rate", flags.rate, "Changes a second")->capture_default_str();
  watch->add_option("--seconds", flags.seconds, "Duration of the measurement")->capture_default_str();
  watch
      ->add_option("--read-one-in", flags.read_one_in,
                   "One in this many watchers parses its messages; the others only receive them")
      ->capture_default_str();
  watch->add_option("--stuck", flags.stuck, "Watchers that stop reading")->capture_default_str();
  watch->add_flag("--own", flags.own, "Each watcher watches one job instead of all");
  CLI::App* follow =
      app.add_subcommand("follow", "Watchers of all jobs, until they have seen the number of jobs on stdin");
  follow->add_option("--watchers", flags.watchers, "Streams")->capture_default_str();
  CLI::App* fill = app.add_subcommand("fill", "Creates finished jobs");
  fill->add_option("--finished", flags.finished, "Number of finished jobs")->capture_default_str();
  fill->add_option("--first", flags.first, "Number of the first")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (workers->parsed()) return run_workers(flags);
  if (failure->parsed()) return run_failure(flags);
  if (recovery->parsed()) return run_recovery(flags);
  if (follow->parsed()) return run_follow(flags);
  return watch->parsed() ? run_watch(flags) : Filler(flags).run();
}
