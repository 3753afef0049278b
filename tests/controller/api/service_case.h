#pragma once

// Test fixture: the real services on a real port, with a store in a temporary folder.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/plan/config/json.h"
#include "common/service/rpc/credentials.h"
#include "common/service/rpc/error.h"
#include "controller/api/gauges.h"
#include "controller/api/server.h"
#include "controller/store/sqlite_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace titan::api {

class ServiceCase : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "titan-api-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    start("127.0.0.1:0");
  }
  void TearDown() override {
    stop();
    std::filesystem::remove_all(folder_);
  }

  void start(const std::string& address) {
    store_ = *store::SqliteStore::open(folder_ + "/titan.db");
    reconcile::ReconcilerOptions options;
    options.lease = lease_;
    options.kept_logs_bytes = kept_logs_bytes_;
    options.jitter = [] { return 0.0; };
    options.new_id = [this] { return absl::StrCat("id", folder_.substr(folder_.size() - 6), ++ids_); };
    measures_ = std::make_unique<reconcile::Measures>(metrics_);
    reconciler_ = *reconcile::Reconciler::open(*store_, system_clock(), options, *measures_);
    const auto copy = [this](const std::string& to, const std::string& actor) {
      backup_actors_.push_back(actor);
      return store::copy_store(folder_ + "/titan.db", to);
    };
    ServerOptions server_options{address, true, options.new_id, {store_->id(), absl::Now(), copy, folder_ + scratch_}};
    server_options.cluster.copy_in_memory = [this](const std::string& actor) {
      backup_actors_.push_back(actor);
      return store_->image();
    };
    server_options.cluster.state_folder_problem = [this] { return state_folder_problem_; };
    server_options.metrics = &metrics_;
    server_options.gate = gate_;
    server_options.audit = audit_;
    server_options.credentials = credentials_;
    server_ = *Server::start(*reconciler_, *store_, server_options);
    channel_ = rpc::make_channel(absl::StrCat("127.0.0.1:", server_->port()));
    jobs_ = v1::JobService::NewStub(channel_);
    nodes_ = v1::NodeService::NewStub(channel_);
    workers_ = v1::WorkerService::NewStub(channel_);
  }
  void stop() {
    server_.reset();
    store_.reset();
    reconciler_.reset();
  }

  // Puts a record into the store, as a controller of any version might have.
  void put_record(const std::string& key, const std::string& value) {
    store::Transaction transaction;
    transaction.mutations.push_back(store::put(key, value));
    absl::Notification written;
    store_->commit(std::move(transaction), [&](const auto&) { written.Notify(); });
    written.WaitForNotification();
  }

  static v1::CreateJobRequest job(const std::string& id) {
    v1::CreateJobRequest request;
    config::JobConfig config;
    config.job.dump_folder = "/dump/" + id;
    config.scheduling.job_id = id;
    request.mutable_spec()->set_config_json(config::to_json(config).dump());
    request.mutable_spec()->set_config_source("# as written");
    return request;
  }
  template <typename Request, typename Response>
  absl::Status call(grpc::Status (v1::JobService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(10));
    return rpc::from_grpc(((*jobs_).*method)(&context, request, response));
  }
  absl::Status create(const v1::CreateJobRequest& request, v1::Job* response) {
    return call(&v1::JobService::Stub::CreateJob, request, response);
  }
  absl::StatusOr<v1::Job> get(const std::string& name) {
    v1::GetJobRequest request;
    request.set_name(name);
    v1::Job response;
    const absl::Status status = call(&v1::JobService::Stub::GetJob, request, &response);
    if (!status.ok()) return status;
    return response;
  }
  absl::Status cancel(const std::string& name) {
    v1::CancelJobRequest request;
    request.set_name(name);
    v1::Job response;
    return call(&v1::JobService::Stub::CancelJob, request, &response);
  }

  // Calls a method by name with bytes, including methods that do not exist.
  grpc::Status call_by_name(const std::string& method, const grpc::Slice& request, grpc::ByteBuffer& answer) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(10));
    grpc::CompletionQueue queue;
    auto pending = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&request, 1), &queue);
    pending->StartCall();
    grpc::Status status;
    pending->Finish(&answer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }

  std::string folder_;
  absl::Duration lease_ = absl::Seconds(5);  // Takes effect at the next start.
  int64_t kept_logs_bytes_ = 1 << 20;        // Takes effect at the next start.
  std::string scratch_;                      // Below folder_; takes effect at the next start.
  std::string state_folder_problem_;         // Result of the next check of the state folder.
  std::vector<std::string> backup_actors_;   // Actor of each backup.
  auth::GateOptions gate_;                   // Takes effect at the next start.
  std::shared_ptr<auth::Audit> audit_;       // Takes effect at the next start.
  std::shared_ptr<grpc::ServerCredentials> credentials_ =
      grpc::InsecureServerCredentials();  // Takes effect at the next start.
  std::atomic<int> ids_ = 0;
  metrics::Metrics metrics_;
  std::unique_ptr<store::SqliteStore> store_;
  std::unique_ptr<reconcile::Measures> measures_;
  std::unique_ptr<reconcile::Reconciler> reconciler_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::NodeService::Stub> nodes_;
  std::unique_ptr<v1::WorkerService::Stub> workers_;
};

}  // namespace titan::api
