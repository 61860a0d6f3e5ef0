#include "tokamak/train/snapshot.h"

#include <map>

#include "tokamak/checkpoint/checkpoint_writer.h"
#include "tokamak/checkpoint/transform.h"
#include "tokamak/core/error.h"
#include "tokamak/core/json.h"

namespace tokamak {
namespace {

// Streams a source into State, converting to the State's dtype.
void load_state(const StateAccess& access, StateId id, const TensorSource& given) {
  const TensorType& type = access.states()[id].type;
  const TensorSource source = given.dtype == type.dtype ? given : cast(given, type.dtype);
  int64_t offset = 0;
  stream(source, [&](std::span<const std::byte> bytes) {
    access.write_at(id, offset, bytes);
    offset += static_cast<int64_t>(bytes.size());
  });
}

}  // namespace

std::vector<TensorSource> state_sources(const StateAccess& access, StateKind kind) {
  std::vector<TensorSource> sources;
  for (const StateId id : access.states().of_kind(kind)) {
    const StateDecl& decl = access.states()[id];
    const int64_t size = size_of(decl.type.dtype);
    sources.push_back({.name = decl.name,
                       .dtype = decl.type.dtype,
                       .dims = decl.type.dims,
                       .read = [access, id, size](int64_t first, std::span<std::byte> out) {
                         access.read_at(id, first * size, out);
                       }});
  }
  return sources;
}

std::filesystem::path save_checkpoint(const StateAccess& access,
                                      const std::filesystem::path& folder, const TrainState& state,
                                      const std::string& config_digest, bool resumable,
                                      DType export_dtype) {
  CheckpointWriter writer(folder, state.step);
  for (const TensorSource& t : state_sources(access, StateKind::kParameter)) {
    writer.add(resumable || t.dtype == export_dtype ? t : cast(t, export_dtype));
  }
  CheckpointInfo info{.step = state.step, .resumable = resumable, .config_digest = config_digest};
  const Json train_state{{"step", state.step}, {"tokens_seen", state.tokens_seen}};
  info.sections["train_state"] = train_state.dump();
  if (resumable) {
    for (const TensorSource& t : state_sources(access, StateKind::kMoment)) writer.add(t);
    info.sections["loader"] = state.loader;
    info.sections["rng"] = Json{{"seed", state.seed}}.dump();
  }
  const ShardSummary shard = writer.finish_shard();
  return writer.commit(std::span(&shard, 1), info);
}

void load_parameters(const StateAccess& access, std::span<const TensorSource> sources) {
  std::map<std::string_view, const TensorSource*> by_name;
  for (const TensorSource& s : sources) by_name[s.name] = &s;
  for (const StateId id : access.states().of_kind(StateKind::kParameter)) {
    const StateDecl& decl = access.states()[id];
    const auto it = by_name.find(decl.name);
    TOK_REQUIRE(it != by_name.end(), "the weights have no tensor {} (wanted {})", decl.name,
                to_string(decl.type.dims));
    TOK_REQUIRE(it->second->dims == decl.type.dims,
                "the weights' tensor {} is {}, the model wants {}", decl.name,
                to_string(it->second->dims), to_string(decl.type.dims));
    load_state(access, id, *it->second);
  }
}

TrainState load_checkpoint(const StateAccess& access, const std::filesystem::path& folder,
                           const LoadParts& parts) {
  const CheckpointReader reader(folder);
  TOK_REQUIRE(reader.manifest().info.resumable,
              "{} holds the model only and cannot be resumed; give it as "
              "checkpoint.initial_load_path of a new run, or "
              "save with checkpoint.last_save_model_only = false",
              folder.string());
  const StateTable& states = access.states();
  for (int32_t i = 0; i < states.size(); ++i) {
    const StateDecl& decl = states[{i}];
    if (!decl.is_checkpointed() || (decl.kind == StateKind::kMoment && !parts.optimizer)) continue;
    const TensorType* found = reader.find(decl.name);
    TOK_REQUIRE(found != nullptr, "{} has no tensor {}", folder.string(), decl.name);
    TOK_REQUIRE(found->dims == decl.type.dims, "{}: {} is {}, the run wants {}", folder.string(),
                decl.name, to_string(found->dims), to_string(decl.type.dims));
    load_state(access, {i}, reader.source(decl.name));
  }
  const std::string what = folder.string() + ": train_state";
  TrainState state;
  if (parts.train_state) {
    const Json json = parse_json(reader.section("train_state"), what);
    state.step = json_member<int64_t>(json, "step", what);
    state.tokens_seen = json_member<int64_t>(json, "tokens_seen", what);
  }
  const Json rng = parse_json(reader.section("rng"), folder.string() + ": rng");
  state.seed = rng.at("seed").get<uint64_t>();
  if (parts.loader) state.loader = reader.section("loader");
  return state;
}

}  // namespace tokamak
