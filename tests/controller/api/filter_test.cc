// Queries of lists: filters compared with a table and a slow evaluator, orders and pages.

#include "controller/api/filter.h"

#include <random>
#include <set>

#include "absl/strings/str_join.h"
#include "controller/api/job_fields.h"
#include "controller/api/job_list.h"
#include "tests/controller/api/service_case.h"

namespace titan::api {
namespace {

using core::JobView;
using core::JobViewPtr;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

JobViewPtr view(job::JobRecord record, int64_t step = 0) {
  auto view = std::make_shared<JobView>();
  view->record = std::make_shared<const job::JobRecord>(std::move(record));
  view->progress.step = step;
  return view;
}

job::JobRecord vision() {
  job::JobRecord record;
  record.name = "projects/default/jobs/vision";
  record.spec.job_id = "vision";
  record.spec.title = "Vision (large) \"x\"";
  record.spec.priority = 5;
  record.spec.ranks = 16;
  record.spec.device = "cuda";
  record.state = job::JobState::kRunning;
  record.owner = "user:alice";
  record.labels = {{"team", "vision"}, {"a.b/c", "1"}};
  record.create_time_ns = absl::ToUnixNanos(kNow - absl::Hours(1));
  record.start_time_ns = absl::ToUnixNanos(kNow - absl::Minutes(30));
  return record;
}

// Callers need not know the name that the controller has for them.
TEST(FilterTest, MeIsTheCaller) {
  const JobViewPtr job = view(vision(), 100);
  const auto holds = [&job](const std::string& text, const std::string& self) {
    return (*parse_filter(text, kNow, self))(*job);
  };
  EXPECT_TRUE(holds("owner = me", "user:alice"));
  EXPECT_FALSE(holds("owner = me", "user:bob"));
  EXPECT_TRUE(holds("owner != me AND id = vision", "user:bob"));
  EXPECT_FALSE(holds("owner = \"me\"", "user:alice")) << "a quoted text is literal";
  EXPECT_FALSE(holds("owner = me", "")) << "the caller is unknown";
  EXPECT_FALSE(holds("id = me", "vision"));
}

TEST(FilterTest, EvaluatesEachFilter) {
  const JobViewPtr job = view(vision(), 100);
  const std::vector<std::pair<std::string, bool>> cases = {
      {"", true},
      {"  ", true},
      {"state = RUNNING", true},
      {"state=running", true},
      {"state != RUNNING", false},
      {"NOT state = RUNNING", false},
      {"-state=RUNNING", false},
      {"id = vision", true},
      {"id = \"vision\"", true},
      {"id = 'vision'", true},
      {"name = projects/default/jobs/vision", true},
      {"project = default", true},
      {"title : large", true},
      {"title : \"(large) \\\"x\"", true},
      {"title : Large", false},
      {"title:*", true},
      {"owner = user:alice", true},
      {"owner : alice", true},
      {"priority = 5", true},
      {"priority > 4 AND priority < 6", true},
      {"priority >= 6 OR priority <= 4", false},
      {"priority > -1", true},
      {"ranks = 16 device = cuda", true},
      {"ranks = 16 device = cpu", false},
      {"progress.step >= 100", true},
      {"labels.team = vision", true},
      {"labels.team != vision", false},
      {"labels.none = vision", false},
      {"labels.none != vision", true},
      {"labels.a.b/c = 1", true},
      {"labels.\"a.b/c\" = 1", true},
      {"labels:team", true},
      {"labels:none", false},
      {"labels:*", true},
      {"labels.team:*", true},
      {"labels.none:*", false},
      {"labels.team : vis", true},
      {"create_time > -2h", true},
      {"create_time > -10m", false},
      {"create_time > -1d", true},
      {"create_time < 2023-11-14T22:13:20Z", true},
      {"create_time < \"2023-11-14T22:13:20+00:00\"", true},
      {"create_time >= 2024-01-01T00:00:00Z", false},
      {"start_time:*", true},
      {"end_time:*", false},
      {"end_time > -2h", false},
      {"end_time != 2024-01-01T00:00:00Z", true},
      {"(state = RUNNING)", true},
      {"NOT (state = RUNNING AND id = vision)", false},
      // OR binds tighter than AND.
      {"priority = 5 AND ranks = 1 OR ranks = 16", true},
      {"ranks = 16 OR ranks = 1 AND priority = 6", false},
      {"ranks = 16 OR (ranks = 1 AND priority = 6)", true},
      {"NOT id = other NOT id = another", true},
  };
  for (const auto& [text, expected] : cases) {
    const auto filter = parse_filter(text, kNow);
    ASSERT_TRUE(filter.ok()) << text << ": " << filter.status();
    EXPECT_EQ((*filter)(*job), expected) << text;
  }
}

TEST(FilterTest, ErrorsNameTheMistakeAndTheColumn) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"state", "column 6: after 'state'"},
      {"state =", "column 8: a value is missing"},
      {"state = NOWHERE", "column 9: 'NOWHERE' is not a job state"},
      {"state < RUNNING", "column 7: a state can only be compared"},
      {"stat = RUNNING", "column 1: unknown field 'stat'; did you mean 'state'?"},
      {"priority = high", "column 12: 'high' is not an integer"},
      {"priority : 5", "column 10: ':' only tests whether priority is set: write priority:*"},
      {"create_time > yesterday", "column 15: 'yesterday' is not a time"},
      {"create_time > -", "is not a time"},
      {"(id = a", "column 1: '(' is not closed"},
      {"id = a)", "column 7: ')' has no matching '('"},
      {"id = \"a", "column 6: the quote is not closed"},
      {"id = a AND", "column 11: a comparison is missing"},
      {"AND id = a", "after 'AND'"},
      {"= a", "column 1: a field is expected"},
      {"labels = a", "column 8: labels are compared one by one"},
      {"labels.Bad = a", "unknown field"},
      {"NOT", "column 4: a comparison is missing"},
      {"()", "column 2: a field is expected"},
      {std::string(60, '('), "nested too deeply"},
      {std::string(10'000, 'x'), "longer than"},
  };
  for (const auto& [text, expected] : cases) {
    const auto filter = parse_filter(text, kNow);
    ASSERT_EQ(filter.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(rpc::reason(filter.status()), "FILTER_INVALID");
    EXPECT_EQ(rpc::field_violations(filter.status()).at(0).field, "filter");
    EXPECT_THAT(std::string(filter.status().message()), HasSubstr(expected)) << text;
  }
}

// A random filter and its meaning.
struct Meant {
  std::string text;
  std::function<bool(const JobView&)> holds;
};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int below(int end) { return static_cast<int>(engine_() % static_cast<unsigned>(end)); }

  JobViewPtr job() {
    job::JobRecord record;
    record.spec.priority = below(4);
    record.spec.ranks = 1 + below(3);
    record.spec.job_id = std::string(1, static_cast<char>('a' + below(3)));
    record.state = below(2) == 0 ? job::JobState::kQueued : job::JobState::kFailed;
    if (below(2) == 0) record.labels["k"] = std::string(1, static_cast<char>('a' + below(3)));
    if (below(2) == 0) record.end_time_ns = absl::ToUnixNanos(kNow - absl::Hours(below(4)));
    return view(std::move(record), below(4));
  }

  Meant comparison() {
    const char* operators[] = {"=", "!=", "<", "<=", ">", ">="};
    const int op = below(6);
    const auto compare = [op](auto a, auto b) {
      const bool results[] = {a == b, a != b, a<b, a <= b, a> b, a >= b};
      return results[op];
    };
    const std::string space = below(2) == 0 ? " " : "";
    const auto written = [&](const std::string& field, const std::string& value) {
      return absl::StrCat(field, space, operators[op], space, value);
    };
    switch (below(5)) {
      case 0: {
        const int value = below(4);
        return {written("priority", absl::StrCat(value)),
                [=](const JobView& job) { return compare(job.record->spec.priority, value); }};
      }
      case 1: {
        const std::string value(1, static_cast<char>('a' + below(3)));
        return {written("id", value), [=](const JobView& job) { return compare(job.record->spec.job_id, value); }};
      }
      case 2: {
        const std::string value(1, static_cast<char>('a' + below(3)));
        return {written("labels.k", "'" + value + "'"), [=](const JobView& job) {
                  const auto label = job.record->labels.find("k");
                  return label == job.record->labels.end() ? op == 1 : compare(label->second, value);
                }};
      }
      case 3: {
        const int hours = below(4);
        return {written("end_time", absl::StrCat("-", hours, "h")), [=](const JobView& job) {
                  const int64_t wanted = absl::ToUnixNanos(kNow - absl::Hours(hours));
                  return job.record->end_time_ns == 0 ? op == 1 : compare(job.record->end_time_ns, wanted);
                }};
      }
      default: {
        const bool failed = below(2) == 0;
        return {absl::StrCat("state = ", failed ? "FAILED" : "QUEUED"),
                [=](const JobView& job) { return (job.record->state == job::JobState::kFailed) == failed; }};
      }
    }
  }

  Meant simple(int depth) {
    if (depth == 0 || below(3) == 0) return comparison();
    Meant inner = sequence(depth - 1);
    inner.text = absl::StrCat("(", inner.text, ")");
    return inner;
  }

  Meant term(int depth) {
    Meant inner = simple(depth);
    const int negated = below(4);
    if (negated > 1) return inner;
    return {absl::StrCat(negated == 0 ? "NOT " : "-", inner.text),
            [inner](const JobView& job) { return !inner.holds(job); }};
  }

  Meant alternatives(int depth) {
    std::vector<Meant> any;
    for (int i = below(3); i >= 0; --i) any.push_back(term(depth));
    std::vector<std::string> texts;
    for (const Meant& one : any) texts.push_back(one.text);
    return {absl::StrJoin(texts, " OR "), [any](const JobView& job) {
              return std::any_of(any.begin(), any.end(), [&](const Meant& one) { return one.holds(job); });
            }};
  }

  Meant sequence(int depth) {
    Meant all = alternatives(depth);
    for (int i = below(3); i > 0; --i) {
      const Meant next = alternatives(depth);
      all = {absl::StrCat(all.text, below(2) == 0 ? " AND " : "  ", next.text),
             [before = all, next](const JobView& job) { return before.holds(job) && next.holds(job); }};
    }
    return all;
  }

 private:
  std::mt19937 engine_;
};

TEST(FilterTest, AgreesWithASlowEvaluator) {
  Random random(11);
  std::vector<JobViewPtr> jobs;
  for (int i = 0; i < 30; ++i) jobs.push_back(random.job());
  int held = 0;
  for (int i = 0; i < 500; ++i) {
    const Meant meant = random.sequence(3);
    const auto filter = parse_filter(meant.text, kNow);
    if (meant.text.size() > 8192) continue;
    ASSERT_TRUE(filter.ok()) << meant.text << ": " << filter.status();
    for (const JobViewPtr& job : jobs) {
      ASSERT_EQ((*filter)(*job), meant.holds(*job)) << meant.text;
      held += meant.holds(*job) ? 1 : 0;
    }
  }
  EXPECT_GT(held, 1000);
  EXPECT_LT(held, 14'000);
}

// Arbitrary text must not crash the parser or the filter.
TEST(FilterTest, AnyTextGivesAFilterOrAnError) {
  std::mt19937 random(5);
  const std::string pieces[] = {"state",   "=", "!=", "(", ")", "AND", "OR", "NOT",  "-",           " ", "\"",     "'",
                                "labels.", "k", ":",  "*", "<", "-2h", "\\", "\xff", "create_time", "5", "RUNNING"};
  const JobViewPtr job = view(vision());
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (unsigned left = random() % 14; left > 0; --left) text += pieces[random() % std::size(pieces)];
    const auto filter = parse_filter(text, kNow);
    if (filter.ok()) {
      (void)(*filter)(*job);
    } else {
      ASSERT_EQ(rpc::reason(filter.status()), "FILTER_INVALID") << text;
    }
  }
}

TEST(OrderByTest, SortsAndRefusesBadOrders) {
  std::vector<JobViewPtr> jobs;
  int64_t order = 0;
  for (const auto& [id, priority, end] :
       std::vector<std::tuple<const char*, int, int64_t>>{{"a", 1, 0}, {"b", 2, 7}, {"c", 2, 5}, {"d", 1, 0}}) {
    job::JobRecord record;
    record.spec.job_id = id;
    record.spec.priority = priority;
    record.end_time_ns = end;
    record.order = ++order;
    jobs.push_back(view(std::move(record)));
  }
  const auto sorted = [&jobs](const std::string& text) {
    const auto order_by = OrderBy::parse(text);
    EXPECT_TRUE(order_by.ok()) << order_by.status();
    std::sort(jobs.begin(), jobs.end(), [&](const auto& a, const auto& b) { return order_by->before(*a, *b); });
    return absl::StrJoin(jobs, "", [](std::string* out, const auto& job) { out->append(job->record->spec.job_id); });
  };
  EXPECT_EQ(sorted("priority desc, id"), "bcad");
  EXPECT_EQ(sorted("priority"), "dacb") << "equal jobs are sorted newest first";
  EXPECT_EQ(sorted("end_time"), "cbda") << "unset values come last";
  EXPECT_EQ(sorted("end_time desc"), "bcda");
  EXPECT_EQ(sorted("labels.x, id desc"), "dcba");
  for (const char* bad : {",", "nothing", "id down", "id desc desc", "id,"}) {
    EXPECT_EQ(rpc::reason(OrderBy::parse(bad).status()), "ORDER_BY_INVALID") << bad;
  }
}

class JobListTest : public ServiceCase {
 protected:
  absl::StatusOr<std::vector<std::string>> ids(v1::ListJobsRequest request) {
    std::vector<std::string> found;
    v1::ListJobsResponse page;
    do {
      page.Clear();
      const absl::Status status = call(&v1::JobService::Stub::ListJobs, request, &page);
      if (!status.ok()) return status;
      for (const v1::Job& job : page.jobs()) found.push_back(job.spec().job_id());
      request.set_page_token(page.next_page_token());
    } while (!page.next_page_token().empty());
    return found;
  }
};

TEST_F(JobListTest, FiltersAndSortsOverPages) {
  for (int i = 0; i < 7; ++i) {
    v1::CreateJobRequest request = job(absl::StrCat("j", i));
    config::JobConfig config;
    config.job.dump_folder = absl::StrCat("/dump/", i);
    config.scheduling.job_id = absl::StrCat("j", i);
    config.scheduling.priority = i % 3;
    request.mutable_spec()->set_config_json(config::to_json(config).dump());
    (*request.mutable_labels())["parity"] = i % 2 == 0 ? "even" : "odd";
    v1::Job created;
    ASSERT_TRUE(create(request, &created).ok());
  }
  v1::ListJobsRequest request;
  request.set_page_size(2);
  request.set_filter("labels.parity = even");
  EXPECT_THAT(*ids(request), ElementsAre("j6", "j4", "j2", "j0"));
  request.set_order_by("priority desc, id");
  EXPECT_THAT(*ids(request), ElementsAre("j2", "j4", "j0", "j6"));
  request.clear_filter();
  EXPECT_THAT(*ids(request), ElementsAre("j2", "j5", "j1", "j4", "j0", "j3", "j6"));
  // A page token belongs to one filter and order.
  v1::ListJobsResponse page;
  ASSERT_TRUE(call(&v1::JobService::Stub::ListJobs, request, &page).ok());
  request.set_page_token(page.next_page_token());
  request.set_order_by("priority");
  EXPECT_EQ(rpc::reason(ids(request).status()), "BAD_PAGE_TOKEN");
  request.set_order_by("priority desc, id");
  request.set_filter("ranks > 0");
  EXPECT_EQ(rpc::reason(ids(request).status()), "BAD_PAGE_TOKEN");
  request.clear_page_token();
  request.set_filter("rank > 0");
  EXPECT_EQ(rpc::reason(ids(request).status()), "FILTER_INVALID");
  request.clear_filter();
  request.set_order_by("rank");
  EXPECT_EQ(rpc::reason(ids(request).status()), "ORDER_BY_INVALID");
}

// Large jobs, such as those with many attempts, arrive in messages that a client accepts.
TEST(JobPagesTest, LargeJobsAreSplitOverPages) {
  reconcile::Published published(0);
  for (int i = 1; i <= 12; ++i) {
    auto record = std::make_shared<job::JobRecord>();
    record->uid = record->name = absl::StrCat("j", i);
    record->order = i;
    record->failure_message = std::string(5 << 20, 'x');
    core::JobView view;
    view.record = record;
    published.load(std::make_shared<core::JobView>(view));
  }
  for (const char* order : {"", "name"}) {
    v1::ListJobsRequest request;
    request.set_order_by(order);
    std::vector<int> sizes;
    std::set<std::string> names;
    v1::ListJobsResponse page;
    do {
      page.Clear();
      ASSERT_TRUE(list_jobs(published, request, auth::admin("local:0"), absl::Now(), page).ok());
      sizes.push_back(page.jobs_size());
      for (const v1::Job& job : page.jobs()) names.insert(job.name());
      request.set_page_token(page.next_page_token());
    } while (!page.next_page_token().empty());
    EXPECT_THAT(sizes, ::testing::ElementsAre(4, 4, 4)) << order;
    EXPECT_EQ(names.size(), 12u) << order;
  }
}

}  // namespace
}  // namespace titan::api
