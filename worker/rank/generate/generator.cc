#include "worker/rank/generate/generator.h"

#include <algorithm>
#include <utility>

#include "worker/rank/generate/kv_cache.h"

namespace titan::generate {
namespace {

int64_t rounded_up(int64_t number, int64_t multiple) { return (number + multiple - 1) / multiple * multiple; }

at::Tensor numbers(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::TensorOptions(at::kLong)).to(device);
}

at::Tensor whole_vocabulary(const at::Tensor& logits, int64_t vocabulary, const comm::Group& tensor) {
  if (logits.size(1) == vocabulary) return logits;
  TORCH_CHECK(logits.size(1) * tensor.size() == vocabulary, "logits of ", logits.size(1), " columns on each of ",
              tensor.size(), " ranks do not cover a vocabulary of ", vocabulary, " tokens");
  at::Tensor all = at::empty({tensor.size(), logits.size(0), logits.size(1)}, logits.options());
  tensor.all_gather(all.view({-1, logits.size(1)}), logits.contiguous()).wait();
  return all.transpose(0, 1).reshape({logits.size(0), vocabulary});
}

class Rows {
 public:
  Rows(const std::vector<std::vector<int64_t>>& prompts, const GeneratorOptions& options)
      : prompts_(prompts), options_(options), results_(prompts.size()) {}

  bool all_done() const {
    return std::all_of(results_.begin(), results_.end(), [this](const Generation& row) { return is_done(row); });
  }

  void take(const at::Tensor& logits) {
    std::vector<double> draws;
    for (size_t row = 0; row < results_.size(); ++row) {
      draws.push_back(draw(options_.sampling.seed, options_.first_prompt + static_cast<int64_t>(row),
                           static_cast<int64_t>(results_[row].tokens.size())));
    }
    newest_ = sample(logits, options_.sampling, draws);
    if (options_.agree) options_.agree(newest_);
    for (size_t row = 0; row < results_.size(); ++row) take(row, newest_[row]);
    // Finished rows take part in the next pass, and the embedding has no row for kNoToken.
    for (int64_t& token : newest_) token = std::max<int64_t>(token, 0);
  }

  // Returns the newest token of each row; that of a finished row is arbitrary, because its results are ignored.
  const std::vector<int64_t>& newest() const { return newest_; }
  std::vector<Generation> results() { return std::move(results_); }

 private:
  bool is_done(const Generation& row) const {
    return row.stopped || row.not_finite || static_cast<int64_t>(row.tokens.size()) >= options_.max_new_tokens;
  }

  void take(size_t row, int64_t token) {
    Generation& result = results_[row];
    if (is_done(result)) return;
    result.not_finite = token == kNoToken;
    if (result.not_finite) return;
    const std::vector<int64_t>& stops = options_.stop_tokens;
    result.stopped = std::find(stops.begin(), stops.end(), token) != stops.end();
    if (result.stopped) return;
    result.tokens.push_back(token);
    if (options_.on_token) options_.on_token(row, token);
  }

  const std::vector<std::vector<int64_t>>& prompts_;
  const GeneratorOptions& options_;
  std::vector<Generation> results_;
  std::vector<int64_t> newest_;
};

std::vector<int64_t> lengths_of(const std::vector<std::vector<int64_t>>& prompts) {
  std::vector<int64_t> lengths;
  for (const auto& prompt : prompts) {
    TORCH_CHECK(!prompt.empty(), "a prompt must have at least one token");
    lengths.push_back(static_cast<int64_t>(prompt.size()));
  }
  return lengths;
}

// Shorter prompts are padded at the end, where none of their tokens attends to it.
at::Tensor pass_prompts(const Forward& forward, KvCache& cache, const std::vector<std::vector<int64_t>>& prompts,
                        const std::vector<int64_t>& lengths, const GeneratorOptions& options) {
  const int64_t longest = rounded_up(*std::max_element(lengths.begin(), lengths.end()), options.token_multiple);
  at::Tensor tokens = at::zeros({static_cast<int64_t>(prompts.size()), longest}, at::kLong);
  std::vector<int64_t> last;
  for (size_t row = 0; row < prompts.size(); ++row) {
    std::copy(prompts[row].begin(), prompts[row].end(),
              tokens.mutable_data_ptr<int64_t>() + static_cast<int64_t>(row) * longest);
    last.push_back(static_cast<int64_t>(row) * longest + lengths[row] - 1);
  }
  cache.expect({.lengths = lengths, .positions = {}});
  nn::MicrobatchContext context;
  context.tokens = tokens.to(options.device);
  context.counting = false;
  return forward(context, numbers(last, options.device));
}

at::Tensor pass_newest(const Forward& forward, KvCache& cache, const std::vector<int64_t>& newest,
                       const std::vector<int64_t>& positions, const GeneratorOptions& options) {
  const auto rows = static_cast<int64_t>(newest.size());
  std::vector<int64_t> tokens = newest, places = positions;
  tokens.resize(static_cast<size_t>(rounded_up(rows, options.token_multiple)));
  places.resize(tokens.size());
  nn::MicrobatchContext context;
  context.tokens = numbers(tokens, options.device).unsqueeze(0);
  context.positions = numbers(places, options.device);
  context.counting = false;
  cache.expect({.lengths = {}, .positions = context.positions.narrow(0, 0, rows)});
  return forward(context, at::arange(rows, context.positions.options()));
}

}  // namespace

Forward forward_through(Visit visit, const nn::Block* last, int64_t vocabulary, const comm::Group& tensor) {
  return [visit = std::move(visit), last, vocabulary, &tensor](const nn::MicrobatchContext& context,
                                                               const at::Tensor& chosen) {
    bool has_chosen = false;
    const auto choose = [&](const at::Tensor& x) {
      has_chosen = true;
      return x.flatten(0, 1).index_select(0, chosen).unsqueeze(0);
    };
    at::Tensor logits = visit(context.tokens, [&](nn::Block& block, const at::Tensor& activation) {
      // If tensor ranks share the tokens, each has only some of them, so the head computes the logits of all tokens.
      const bool early = &block == last && activation.size(1) == context.tokens.size(1);
      return block.forward(early ? choose(activation) : activation, context);
    });
    if (!has_chosen) logits = choose(logits);
    return whole_vocabulary(logits.squeeze(0), vocabulary, tensor);
  };
}

std::vector<Generation> generate(const Forward& forward, const std::vector<nn::Block*>& blocks,
                                 const std::vector<std::vector<int64_t>>& prompts, const GeneratorOptions& options) {
  if (prompts.empty()) return {};
  at::NoGradGuard no_grad;
  const std::vector<int64_t> lengths = lengths_of(prompts);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end()) + options.max_new_tokens;
  KvCache cache(blocks, static_cast<int64_t>(prompts.size()), longest);
  Rows rows(prompts, options);
  if (rows.all_done()) return rows.results();
  rows.take(pass_prompts(forward, cache, prompts, lengths, options));
  for (std::vector<int64_t> positions = lengths; !rows.all_done();) {
    rows.take(pass_newest(forward, cache, rows.newest(), positions, options));
    for (int64_t& position : positions) ++position;
  }
  return rows.results();
}

}  // namespace titan::generate
